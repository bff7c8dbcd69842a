"""A real worker that notices a call alone: neither its own timer nor a lapsed lead wakes it for many minutes."""

from __future__ import annotations

import sys

import workers.idle
from workers.__main__ import main

if __name__ == "__main__":
    workers.idle.LISTEN_S = workers.idle.LONGEST_S = 900.0  # type: ignore[misc]
    workers.idle.LAPSE_MS = 900_000  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
