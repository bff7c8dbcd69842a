"""`notifier …`, also `python -m notifier.cli …`: runs a command, and turns what went wrong into a line and a status."""

from __future__ import annotations

import sys

from notifier.cli.app import app
from notifier.errors import NotifierError


def main() -> None:
    """Run the command in `sys.argv` and exit with one of `cli.output.Status`."""
    try:
        app(prog_name="notifier")
    except NotifierError as error:
        print(error, file=sys.stderr)  # noqa: T201 - for people
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
