"""A server for clients to race on: takes every HTTPS/1.1 request for a message that was accepted, and checks nothing.

`python -m benchmarks.providers.server_http1 <cert file> <key file>` prints its port. ``/token`` is Google's token
endpoint, ``/push/…`` a push service of the web, all else FCM.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from typing import Final, cast

LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def _response(status: bytes, body: bytes, headers: bytes = b"") -> bytes:
    kind = b"Content-Type: application/json\r\n" if body else b""
    return b"HTTP/1.1 %s\r\n%s%sContent-Length: %d\r\n\r\n%s" % (status, kind, headers, len(body), body)


ACCEPTED: Final = _response(b"200 OK", b'{"name": "projects/benchmark/messages/0:1500000000000000%31bd1c96"}')
PUSHED: Final = _response(b"201 Created", b"", b"Location: https://127.0.0.1/message/1\r\n")
ACCESS: Final = b'{"access_token": "%s", "expires_in": 3600, "token_type": "Bearer"}' % (b"x" * 200)
TOKEN: Final = _response(b"200 OK", ACCESS)


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self) -> None:
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        held = self._held + data
        while (blank := held.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(held, 0, blank + 2)
            end = blank + 4 + (int(length[1]) if length else 0)
            if len(held) < end:
                break
            path = held.split(b" ", 2)[1]
            answer = TOKEN if path == b"/token" else PUSHED if path.startswith(b"/push/") else ACCEPTED
            self._transport.write(answer)
            held = held[end:]
        self._held = held


async def serve(cert_file: str, key_file: str) -> None:
    """Serve until killed."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert_file, key_file)
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, ssl=tls, backlog=500)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
