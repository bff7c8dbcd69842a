"""A worker whose name server never answers: each lookup of a provider's host hangs, and says so in the log."""

import socket
import sys
import threading
from typing import Any

from workers.__main__ import main

look_up = socket.getaddrinfo


def hang(host: Any, *args: Any, **options: Any) -> Any:
    if host not in {"localhost", b"localhost"}:
        return look_up(host, *args, **options)
    sys.stderr.write(f"looks up {args[0]}\n")
    sys.stderr.flush()
    return threading.Event().wait()


socket.getaddrinfo = hang
sys.exit(main(sys.argv[1:]))
