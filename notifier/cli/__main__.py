"""`notifier …`, also `python -m notifier.cli …`: runs a command, and turns what went wrong into a line and a status."""

from __future__ import annotations

import sys

from notifier.cli.app import app
from notifier.cli.output import Status
from notifier.errors import (
    ChannelError,
    InvalidNotificationError,
    LimiterUnreachableError,
    OverloadedError,
    RedisUnusableError,
    SettingsError,
)


def main() -> None:
    """Run the command in `sys.argv` and exit with a `Status`."""
    try:
        app(prog_name="notifier")
    except (ChannelError, InvalidNotificationError, OverloadedError) as error:
        _fail(error, Status.NOT_RIGHT)
    except SettingsError as error:
        _fail(error, Status.CONFIGURATION)
    except (RedisUnusableError, LimiterUnreachableError) as error:
        _fail(error, Status.REDIS)


def _fail(error: Exception, status: Status) -> None:
    print(error, file=sys.stderr)  # noqa: T201 - for people
    sys.exit(status)


if __name__ == "__main__":
    main()
