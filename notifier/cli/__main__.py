"""`notifier …`, also `python -m notifier.cli …`: runs a command, and turns what went wrong into a line and a status."""

from __future__ import annotations

import io
import os
import re
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from notifier.errors import NotifierError, SettingsError, needs_extra

# Errors of code that reads what is no time, no number or no text. Anybody who can write to Redis can cause them.
UNREADABLE: Final = (ArithmeticError, LookupError, TypeError, ValueError, struct.error)
_IS_NO_TEXT: Final = re.compile("[\ud800-\udfff]")  # what Python reads bytes as that are no UTF-8


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `sys.argv`, or in these, and exit as EXIT_STATUSES of `cli.output` says."""
    arguments = sys.argv[1:] if arguments is None else arguments
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
    if no_text := next((each for each in arguments if _IS_NO_TEXT.search(each)), ""):
        complain(f"the argument {no_text} is not valid UTF-8 text")
        sys.exit(2)
    try:
        app(arguments, prog_name="notifier")
    except NotifierError as error:
        complain(str(error))
        sys.exit(error.exit_status)
    except OSError as error:  # of a file that the command was given
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        sys.exit(1)
    except UNREADABLE as error:
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


if __name__ == "__main__":
    main()
