"""Ports for servers of 127.0.0.1 that may be ended, and started again at the same place."""

from __future__ import annotations

import os
import socket
from collections import deque
from random import SystemRandom
from typing import Final

# Below those that systems give to whoever asks for any port: so nobody gets one while its server is being restarted.
PORTS: Final = range(12_000, 20_000)
TRIES: Final = 100
RESERVED_AT_ONCE: Final = 100

# A UDP socket on a port reserves it: servers listen by TCP, so they can still have it, and another process that
# chooses sees that it is taken before its server listens. It ends with the process.
_reserved: deque[int] = deque()  # their file descriptors


def free_port(wanted: int = 0) -> int:
    """Return a port that nobody uses, and that no other process gets here: the wanted one, if that is free.

    Raise OSError if none is found.
    """
    for port in filter(None, [wanted, *SystemRandom().sample(PORTS, TRIES)]):
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            # As a server binds it: connections that ended there a minute ago do not matter.
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation.detach())
        if len(_reserved) > RESERVED_AT_ONCE:
            os.close(_reserved.popleft())
        return port
    raise OSError(f"no port of {TRIES} from {PORTS.start} to {PORTS.stop - 1} is free")
