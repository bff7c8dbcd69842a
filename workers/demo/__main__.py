"""Sends 2,144 notifications through real workers to simulators of APNs and FCM, and measures what arrives there.

It starts all that it needs, Redis too, and stops all of it at its end. The exit status is 0 only if every rate limit
held, the order was kept and no notification was lost.
"""

# Keep these imports few: they run before `main` handles Ctrl-C and before the demo prints anything.
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
            from workers.demo.run import play  # noqa: PLC0415 - the import takes about a second
    except SettingsError as error:
        sys.exit(str(error))
    try:
        signal.signal(signal.SIGINT, _stop)
        return play(arguments)
    except KeyboardInterrupt:
        sys.stderr.write(STOPPED)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter takes a moment to end


def _leave(*_: object) -> None:
    """End at once: nothing has started yet, and an import may swallow an exception or show its traceback."""
    os.write(2, STOPPED.encode())
    os._exit(INTERRUPTED)


def _stop(*_: object) -> None:
    """Unwind the demo once: while it ends, it ignores another Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
