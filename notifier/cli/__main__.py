"""`notifier …`, also `python -m notifier.cli …`: runs a command, and turns an error into a line and an exit status."""

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

# Code raises these if a value in Redis is not the time, number or text that it expects.
UNREADABLE: Final = (ArithmeticError, LookupError, TypeError, ValueError, struct.error)
_IS_NO_TEXT: Final = re.compile("[\ud800-\udfff]")  # Python decodes invalid UTF-8 to these


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `arguments`, by default `sys.argv`, and exit as EXIT_STATUSES of `cli.output` says."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with needs_extra("the command notifier", "worker"):
            from notifier.cli.app import app  # noqa: PLC0415 - a producer may lack what the command needs
            from notifier.cli.output import complain  # noqa: PLC0415 - as above
            from notifier.store.connection import unreadable  # noqa: PLC0415 - as above
    except SettingsError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # once the app runs, it handles Ctrl-C
        sys.exit(130)
    _ready_streams()
    if os.environ.get("COLUMNS") == "0":  # as a terminal of unknown width says it; rich would print nothing
        del os.environ["COLUMNS"]
    if no_text := next((each for each in arguments if _IS_NO_TEXT.search(each)), ""):
        complain(f"the argument {no_text} is not valid UTF-8 text")
        sys.exit(2)
    try:
        app(arguments, prog_name="notifier")
    except NotifierError as error:
        complain(str(error))
        sys.exit(error.exit_status)
    except OSError as error:  # of a file that the command was given
        is_lost = isinstance(error, FileNotFoundError) and not error.filename
        named = "the current folder" if is_lost else error.filename
        complain(f"{named}: {error.strerror}" if named else str(error))
        sys.exit(1)
    except UNREADABLE as error:
        if sys.flags.dev_mode:
            raise
        explained = unreadable(error)
        complain(str(explained))
        sys.exit(explained.exit_status)


def _ready_streams() -> None:
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115 - until this ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # some pipes cannot
                stream.reconfigure(errors="backslashreplace")  # the encoding may lack some letters


if __name__ == "__main__":
    main()
