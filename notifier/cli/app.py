"""The tree of commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from notifier.cli.output import EXIT_STATUSES, say

MARKUP: Final = "markdown"
# What stands behind `worker` is read by the worker itself.
OPEN_ENDED: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

# Where each command is written: module and name. A module is imported when its command is asked for, because each
# takes part of a second that the others need not wait for.
PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "worker": ("worker", "worker"),
    "send": ("send", "send"),
    "send-file": ("send", "send_file"),
    "status": ("look", "status"),
    "cancel": ("cancel", "cancel"),
    "line": ("look", "line"),
    "explain": ("look", "explain"),
    "routes": ("look", "routes"),
    "history": ("history", "history"),
    "health": ("health", "health"),
    "stats": ("stats", "stats"),
    "serve": ("serve", "serve"),
    "audit": ("audit", "audit"),
    "preview": ("preview", "preview"),
    "load": ("load", "load"),
    "trace": ("record", "trace"),
    "config": ("config", "commands"),
    "redis": ("redis", "commands"),
    "shards": ("shards", "commands"),
    "users": ("users", "commands"),
    "channels": ("channels", "commands"),
}


@cache
def _made(name: str) -> Any:
    module, attribute = PLACES[name]
    written = getattr(import_module(f"notifier.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=MARKUP)
    if isinstance(written, typer.Typer):
        alone.add_typer(written, name=name)
    else:
        alone.command(name, context_settings=OPEN_ENDED if name == "worker" else None)(written)
    return typer.main.get_group(alone).commands[name]


class Places(Mapping[str, Any]):
    """The commands by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


class Commands(TyperGroup):
    """The command `notifier`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": Places()})


app = typer.Typer(
    cls=Commands,
    help="Send push notifications, and limit how many each user receives.",
    epilog=EXIT_STATUSES,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
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
