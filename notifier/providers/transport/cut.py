"""How a connection is cut, over which there is still something to send."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

AT_ONCE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: what was not sent yet is thrown away


def cut(transport: asyncio.Transport, connected: socket.socket) -> None:
    """Cut a connection: what it still had to send is not to arrive any more."""
    with contextlib.suppress(OSError):  # it is closed already
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    abort(transport, connected)


def abort(transport: asyncio.Transport, connected: socket.socket) -> None:
    """As `transport.abort()`, also of TLS that was closed twice: Python 3.11.2 raises AttributeError."""
    try:
        transport.abort()
    except AttributeError:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
