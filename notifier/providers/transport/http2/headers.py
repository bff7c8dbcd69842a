"""Header blocks for requests that differ in a few fields only: a repeated header costs one byte and no search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hpack import Encoder, HeaderTuple, NeverIndexedHeaderTuple

NEVER_INDEXED: Final = b"\x10"
STRING_PREFIX: Final = 0x7F  # RFC 7541, 5.2: seven bits of length, the eighth would say Huffman
CONTINUED: Final = 0x80


class HeaderEncoder(Encoder):
    """An hpack encoder for many similar requests.

    A NeverIndexedHeaderTuple (a path, a credential, an id) is written literally and never enters the table. Any other
    header enters the table once, and is one byte from then on.
    No Huffman coding: in Python it costs more time, here and at many servers, than the bytes it saves.
    """

    def __init__(self) -> None:
        super().__init__()
        self._indexed: dict[HeaderTuple, bytes] = {}

    def encode(self, headers: Iterable[HeaderTuple], huffman: bool = True) -> bytes:  # type: ignore[override]  # noqa: ARG002 - h2 leaves it at its default
        block = []
        if sizes := self.table_size_changes:
            self._indexed.clear()
            # RFC 7541, 4.2: of several changes since the last block, send the smallest and the last. hpack would send
            # all, even one that is too large by now.
            self.table_size_changes = [min(sizes), sizes[-1]] if min(sizes) < sizes[-1] else [sizes[-1]]
            self.header_table.resized = True  # hpack resets it if the server names the same size again
            block.append(super().encode([]))  # the new size has to come first
        for header in headers:
            if not header.indexable:
                name, value = header
                block.append(NEVER_INDEXED + _string(name) + _string(value))
            elif (known := self._indexed.get(header)) is not None:
                block.append(known)
            else:
                encoded = super().encode([header], huffman=False)
                if len(encoded) == 1:
                    self._indexed[header] = encoded
                else:
                    self._indexed.clear()  # it was put into the table, which moves every index
                block.append(encoded)
        return b"".join(block)


def literal(name: bytes, value: bytes) -> HeaderTuple:
    """Return a header that differs from request to request, or that no intermediary may remember."""
    return NeverIndexedHeaderTuple(name, value)


def repeated(name: bytes, value: bytes) -> HeaderTuple:
    """Return a header that is the same on many requests."""
    return HeaderTuple(name, value)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < STRING_PREFIX:
        return bytes((size,)) + text
    prefix = bytearray((STRING_PREFIX,))
    size -= STRING_PREFIX
    while size >= CONTINUED:
        prefix.append(size % CONTINUED + CONTINUED)
        size //= CONTINUED
    prefix.append(size)
    return bytes(prefix) + text
