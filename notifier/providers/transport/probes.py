"""Signs of life: whether a provider reads and answers, asked without sending a message.

Each probe is two exchanges, the second begun after the answer to the first, over connections of its own. One would not
do: a server that was stopped and goes on may read its sockets in any order, so its first answer may come before it has
read what lay in another one. After the second answer it has been around once. Over HTTP/2, `Channel.lives` asks.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

HTTPS_PORT: Final = 443
SERVER_ERROR: Final = 500  # that, or more, may be a proxy's word on a server that does not answer


async def http1_lives(origin: str, tls: ssl.SSLContext, timeout_s: float) -> bool:
    """Whether a server answers two requests for nothing, one after the other; origin: ``https://host[:port]``."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _answers(origin, tls) and await _answers(origin, tls)
    # A TimeoutError is an OSError, and a name that no resolver takes a UnicodeError.
    except (OSError, EOFError, ValueError):
        return False


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
