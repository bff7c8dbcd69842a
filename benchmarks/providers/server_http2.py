"""A server for clients to race on: takes every HTTP/2 request for a push that was accepted, and checks nothing.

`python -m benchmarks.providers.server_http2 <cert file> <key file> <stream limit> <latency in ms>` prints its port.

It reads frames, not messages: of a header block it unpacks no more than it needs to give the apns-id back, as the
bytes it came in. So it is several times as fast as the simulator and does not become what is measured.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import deque
from typing import Final, cast

from hpack import Encoder

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
FRAME_HEADER: Final = 9
STATIC_ENTRIES: Final = 61  # of HPACK
CREDIT: Final = 32_768  # bytes of bodies taken before the connection's window is opened by as much again
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STATUS_200: Final = b"\x88"
WITHOUT_INDEXING: Final = b"\x00"


def _packed_name(*, huffman: bool) -> bytes:
    """The name apns-id as a string of HPACK, in one of the two ways to write it."""
    block = Encoder().encode([(b"apns-id", b"")], huffman=huffman)
    return bytes(block[1 : 2 + (block[1] & 0x7F)])


APNS_ID: Final = frozenset({_packed_name(huffman=True), _packed_name(huffman=False)})
OWN_NAME: Final = _packed_name(huffman=False)


class HeaderReader:
    """Finds the apns-id in header blocks. It keeps strings packed, and entries that the client has long dropped."""

    def __init__(self) -> None:
        # An entry is found by how many came after it, so none has to be dropped in time.
        self._entries: deque[tuple[bytes, bytes]] = deque(maxlen=256)

    def apns_id(self, block: bytes) -> bytes:
        """The value as a packed string; that of an empty text where there is none."""
        at, size, found = 0, len(block), b"\x00"
        while at < size:
            first = block[at]
            if first & 0x80:  # name and value from the table
                index, at = _integer(block, at, 0x7F)
                name, value = self._entries[index - STATIC_ENTRIES - 1] if index > STATIC_ENTRIES else (b"", b"")
            elif first & 0xE0 == 0x20:  # a new size of the table  # noqa: PLR2004
                _, at = _integer(block, at, 0x1F)
                continue
            else:
                kept = first & 0x40
                index, at = _integer(block, at, 0x3F if kept else 0x0F)
                if not index:
                    name, at = _string(block, at)
                else:
                    name = self._entries[index - STATIC_ENTRIES - 1][0] if index > STATIC_ENTRIES else b""
                value, at = _string(block, at)
                if kept:
                    self._entries.appendleft((name, value))
            if name in APNS_ID:
                found = value
        return found


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            return value, at
        shift += 7


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    size, begin = _integer(block, at, 0x7F)
    end = begin + size
    return block[at:end], end


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, max_streams: int, latency_s: float) -> None:
        self._max_streams = max_streams
        self._latency_s = latency_s
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self._preface_due = True
        self._headers = HeaderReader()
        self._open: dict[int, bytes] = {}
        self._taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the one setting that matters."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(frame(SETTINGS, 0, 0, (3).to_bytes(2) + self._max_streams.to_bytes(4)))

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        held = self._held + data if self._held else data
        at, size = 0, len(held)
        if self._preface_due and size >= len(PREFACE):
            self._preface_due, at = False, len(PREFACE)
        out: list[bytes] = []
        answers: list[bytes] = []
        while size - at >= FRAME_HEADER:
            end = at + FRAME_HEADER + int.from_bytes(held[at : at + 3])
            if end > size:
                break
            stream_id = int.from_bytes(held[at + 5 : at + 9])
            answer = self._take(held[at + 3], held[at + 4], stream_id, held[at + FRAME_HEADER : end])
            if answer:
                (answers if held[at + 3] in {DATA, HEADERS} else out).append(answer)
            at = end
        self._held = held[at:]
        if self._taken >= CREDIT:
            out.append(frame(WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4)))
            self._taken = 0
        if answers and self._latency_s:
            self._loop.call_later(self._latency_s, self._write, b"".join(answers))
        else:
            out += answers
        if out:
            self._transport.write(b"".join(out))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
        """The frame that answers this one, or nothing."""
        if kind == DATA:
            self._taken += len(payload)
        elif kind == HEADERS:
            if not flags & END_HEADERS or flags & (PADDED | PRIORITY):
                raise NotImplementedError("a header block in parts, padded or with a priority")
            self._open[stream_id] = self._headers.apns_id(payload)
        elif kind == RST_STREAM:
            self._open.pop(stream_id, None)
        elif kind == SETTINGS and not flags & ACK:
            return frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            return frame(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self._transport.close()
        if kind in {DATA, HEADERS} and flags & END_STREAM and stream_id in self._open:
            return _answer(stream_id, self._open.pop(stream_id))
        return b""


def _answer(stream_id: int, apns_id: bytes) -> bytes:
    block = STATUS_200 + WITHOUT_INDEXING + OWN_NAME + apns_id
    return frame(HEADERS, END_STREAM | END_HEADERS, stream_id, block)


async def serve(cert_file: str, key_file: str, max_streams: int, latency_s: float) -> None:
    """Serve until killed."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert_file, key_file)
    tls.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(max_streams, latency_s), "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]) / 1000))
