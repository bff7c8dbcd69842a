"""`notifier …`, also `python -m notifier.cli …`: runs a command, and turns what went wrong into a line and a status."""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from notifier.errors import InvalidNotificationError, NotifierError, SettingsError, needs_extra

# Errors of code that reads what is no time, no number or no text. Anybody who can write to Redis can cause them.
UNREADABLE: Final = (ArithmeticError, LookupError, TypeError, ValueError, struct.error)


def main() -> None:
    """Run the command in `sys.argv` and exit as EXIT_STATUSES of `cli.output` says."""
    try:
        with needs_extra("the command notifier", "worker"):
            from notifier.cli.app import app  # noqa: PLC0415 - a producer may lack what the command needs
            from notifier.cli.output import complain  # noqa: PLC0415 - as above
            from notifier.store.connection import unreadable  # noqa: PLC0415 - as above
    except SettingsError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # later the app says it
        sys.exit(130)
    _ready_streams()
    try:
        app(prog_name="notifier")
    except NotifierError as error:
        if isinstance(error, InvalidNotificationError):
            _refuse_what_is_no_text(complain)
        complain(str(error))
        sys.exit(error.exit_status)
    except OSError as error:  # of a file that the command was given
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        sys.exit(1)
    except UNREADABLE as error:
        if isinstance(error, UnicodeEncodeError):
            _refuse_what_is_no_text(complain)
        if sys.flags.dev_mode:
            raise
        told = unreadable(error)
        complain(str(told))
        sys.exit(told.exit_status)


def _ready_streams() -> None:
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever starts this has closed it
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115 - until this ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # some pipes cannot
                stream.reconfigure(errors="backslashreplace")  # a terminal need not know all letters


def _refuse_what_is_no_text(complain: Callable[[str], None]) -> None:
    """End the command by its first argument that is no UTF-8, if there is one."""
    for each in sys.argv:
        if os.fsencode(each).decode(errors="ignore") != each:
            complain(f"the argument {each} is not valid UTF-8 text")
            sys.exit(2)


if __name__ == "__main__":
    main()
