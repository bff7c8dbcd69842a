"""Sends 2,144 notifications through real workers to simulators of APNs and FCM, and measures what arrives there.

It starts all that it needs, Redis too, and stops all of it at its end. The exit status is 0 only if every rate limit
held, the order was kept and no notification was lost.
"""

# What is imported here is loaded before Ctrl-C ends quietly and before the demo says anything. So it is little.
from __future__ import annotations

import os
import signal
import sys
from typing import Final

from notifier.errors import SettingsError, needs_extra

INTERRUPTED: Final = 130  # as a shell reports Ctrl-C
STOPPED: Final = "\nstopped; everything that the demo had started has ended\n"


def main(argv: list[str] | None = None) -> int:
    """Run the demo; returns 0 only if the laws held."""
    signal.signal(signal.SIGINT, _leave)
    from workers.demo.options import parse  # noqa: PLC0415 - see above

    arguments = parse(argv, __doc__)
    if not arguments.json:
        sys.stderr.write(f"Setting up Redis, simulators of APNs and FCM, and {arguments.workers} workers …\n")
        sys.stderr.flush()
    try:
        with needs_extra("the demo", "simulators"):
            from workers.demo.run import play  # noqa: PLC0415 - this takes about a second
    except SettingsError as error:
        sys.exit(str(error))
    try:
        signal.signal(signal.SIGINT, _stop)
        return play(arguments)
    except KeyboardInterrupt:
        sys.stderr.write(STOPPED)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter's own end takes a moment too


def _leave(*_: object) -> None:
    """Nothing has been started yet, and an exception inside of an import may be lost or shown."""
    os.write(2, STOPPED.encode())
    os._exit(INTERRUPTED)


def _stop(*_: object) -> None:
    """Unwind what runs, once: while it ends, another Ctrl-C changes nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
