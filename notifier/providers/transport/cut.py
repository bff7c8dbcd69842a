"""Close a connection without sending the rest of its data."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

AT_ONCE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: unsent data is discarded


def cut(transport: asyncio.Transport, connected: socket.socket) -> None:
    """Close a connection at once, and discard the data that was not sent yet."""
    with contextlib.suppress(OSError):  # it is closed already
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    abort(transport, connected)


def abort(transport: asyncio.Transport, connected: socket.socket) -> None:
    """As `transport.abort()`, which raises AttributeError in Python 3.11.2 for TLS that was closed twice."""
    try:
        transport.abort()
    except AttributeError:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
