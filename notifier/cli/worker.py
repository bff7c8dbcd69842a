"""The command that works."""

from __future__ import annotations

import typer


def worker(context: typer.Context) -> None:
    """Run a worker until it is told to stop. See `notifier worker --help`."""
    from workers.__main__ import main  # noqa: PLC0415 - no other command needs RQ's worker

    of_config = ["--config", str(context.obj)] if context.obj else []
    raise typer.Exit(main([*of_config, *context.args], prog="notifier worker"))
