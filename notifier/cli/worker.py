"""The command that works."""

from __future__ import annotations

import typer

OPEN_ENDED = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def worker(context: typer.Context) -> None:
    """Run a worker until it is told to stop. See `notifier worker --help`."""
    from workers.__main__ import main  # noqa: PLC0415 - no other command needs RQ's worker

    of_config = ["--config", str(context.obj)] if context.obj else []
    raise typer.Exit(main([*of_config, *context.args], prog="notifier worker"))
