"""Signs of life: whether a provider reads and answers, asked without sending a message.

Each probe is two exchanges, the second begun after the answer to the first, over connections of its own. One would not
do: a server that was stopped and goes on may read its sockets in any order, so its first answer may come before it has
read what lay in another one. After the second answer it has been around once.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

HTTPS_PORT: Final = 443
SERVER_ERROR: Final = 500  # that, or more, may be a proxy's word on a server that does not answer
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9  # of a frame: length (3), type, flags, stream (4)
SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1
# What a peer, or the way to it, does; a TimeoutError is an OSError, and a name that no resolver takes a UnicodeError.
TROUBLE: Final = (OSError, EOFError, ValueError)


async def http2_lives(host: str, port: int, tls: ssl.SSLContext, timeout_s: float) -> bool:
    """Whether an HTTP/2 server answers two PINGs, one after the other, on a new connection."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=host)
            try:
                writer.write(PREFACE + _frame(SETTINGS))
                for payload in (b"probe  1", b"probe  2"):
                    writer.write(_frame(PING, payload))
                    await _pong(reader, writer, payload)
                writer.write(_frame(GOAWAY, bytes(8)))
            finally:
                writer.close()
    except TROUBLE:
        return False
    return True


async def http1_lives(origin: str, tls: ssl.SSLContext, timeout_s: float) -> bool:
    """Whether a server answers two requests for nothing, one after the other; origin: ``https://host[:port]``."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _answers(origin, tls) and await _answers(origin, tls)
    except TROUBLE:
        return False


async def _pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes) -> None:
    while True:
        header = await reader.readexactly(HEADER_BYTES)
        kind, flags = header[3], header[4]
        content = await reader.readexactly(int.from_bytes(header[:3]))
        if kind == SETTINGS and not flags & ACK:
            writer.write(_frame(SETTINGS, flags=ACK))
        elif kind == PING and not flags & ACK:
            writer.write(_frame(PING, content, flags=ACK))
        elif kind == PING and content == payload:
            return


async def _answers(origin: str, tls: ssl.SSLContext) -> bool:
    parts = urlsplit(origin)
    host, name = parts.hostname or "", parts.netloc
    reader, writer = await asyncio.open_connection(host, parts.port or HTTPS_PORT, ssl=tls, server_hostname=host)
    try:
        writer.write(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode("ascii"))
        version, status, *_ = (await reader.readline()).split(maxsplit=2)
        return version.startswith(b"HTTP/1.") and int(status) < SERVER_ERROR
    finally:
        writer.transport.abort()  # nobody reads the rest


def _frame(kind: int, content: bytes = b"", *, flags: int = 0) -> bytes:
    return len(content).to_bytes(3) + bytes((kind, flags, 0, 0, 0, 0)) + content
