"""Text that came from elsewhere, and may be no Unicode: how it is read, written and shown, in one place."""

from __future__ import annotations

from typing import Final

MAX_REASON: Final = 1_000  # characters of a reason that are kept


def from_bytes(raw: bytes | str) -> str:
    """Bytes of Redis as text; what is not UTF-8 is kept, for `to_bytes`, and is no text to anybody else."""
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw


def to_bytes(text: str) -> bytes:
    """What `from_bytes` was given; never fails: half of a surrogate pair from elsewhere is written as its escape."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def readable(text: str, most: int = MAX_REASON) -> str:
    """The same text, as any log and any script can take it: what is no Unicode as escapes, and cut where it is long."""
    if len(text) > most:
        text = f"{text[:most]}…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
