"""Removes dead tokens from a register of devices: `python examples/remove_dead_tokens.py devices.db [--follow]`.

The register is a table of an SQLite file here, `devices (token, user, registered_at)`, the time in seconds since 1970.
Without --follow it ends when nothing is left: for cron. With it, it waits for more: for a service.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from notifier import Notifier, NotifierError


def main() -> int:
    """Remove what is dead, and was not registered again since it died."""
    names = [argument for argument in sys.argv[1:] if argument != "--follow"]
    if len(names) != 1 or names[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    there = f"{Path(names[0]).resolve().as_uri()}?mode=rw"  # a path that names nothing makes no empty register
    removed = 0
    try:
        with Notifier.from_config() as notifier, closing(sqlite3.connect(there, uri=True)) as register:
            for gone in notifier.feedback(follow="--follow" in sys.argv):
                # In one transaction, ended before the loop goes on: then, and not before, this one is done.
                with register:
                    removed += register.execute(
                        "DELETE FROM devices WHERE token = ? AND registered_at <= ?",
                        (gone.token, gone.gone_at.timestamp()),
                    ).rowcount
    except (NotifierError, sqlite3.Error) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # --follow goes on until then
        pass
    print(f"{removed} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
