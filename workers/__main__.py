"""`python -m workers …` runs `notifier worker …`, if that command is not on the path."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from notifier.cli.__main__ import main as notifier


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker with these arguments, or those of the command line. Exits as `notifier` does."""
    notifier(["worker", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
