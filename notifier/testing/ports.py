"""Ports of 127.0.0.1 for servers that a test may end, and start again on the same port."""

from __future__ import annotations

import os
import socket
from collections import deque
from random import SystemRandom
from typing import Final

# Below the ephemeral ports, so that the system gives none of these away while its server restarts.
PORTS: Final = range(12_000, 20_000)
TRIES: Final = 100
RESERVED_AT_ONCE: Final = 100

# A UDP socket reserves each port. A server can still listen there by TCP, and another process that calls `free_port`
# sees that the port is taken. The reservation ends with the process.
_reserved: deque[int] = deque()  # the file descriptors


def free_port(wanted: int = 0) -> int:
    """Return a free port that no other process gets from this function: the wanted one, if that is free.

    Raise OSError if none is found.
    """
    for port in filter(None, [wanted, *SystemRandom().sample(PORTS, TRIES)]):
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            # With SO_REUSEADDR, as a server binds: connections that ended there a minute ago do not matter.
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation.detach())
        if len(_reserved) > RESERVED_AT_ONCE:
            os.close(_reserved.popleft())
        return port
    raise OSError(f"no port of {TRIES} from {PORTS.start} to {PORTS.stop - 1} is free")
