"""The tree of commands."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from notifier.cli import (
    audit,
    cancel,
    config,
    health,
    history,
    load,
    look,
    preview,
    record,
    redis,
    send,
    serve,
    shards,
    stats,
    users,
    worker,
)
from notifier.cli.output import EXIT_STATUSES, say

app = typer.Typer(
    help="Send push notifications, and limit how many each user receives.",
    epilog=EXIT_STATUSES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        say(version("push-throttle"))
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="the configuration  [default: $NOTIFIER_CONFIG, else config/notifier.yaml]", show_default=False
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    context.obj = config


app.command(context_settings=worker.OPEN_ENDED)(worker.worker)
app.command()(send.send)
app.command("send-file")(send.send_file)
app.command()(look.status)
app.command()(cancel.cancel)
app.command()(look.line)
app.command()(look.explain)
app.command()(look.routes)
app.command()(history.history)
app.command()(health.health)
app.command()(stats.stats)
app.command()(serve.serve)
app.command()(audit.audit)
app.command()(preview.preview)
app.command()(load.load)
app.add_typer(record.trace, name="trace")
app.add_typer(config.commands, name="config")
app.add_typer(redis.commands, name="redis")
app.add_typer(shards.commands, name="shards")
app.add_typer(users.commands, name="users")
