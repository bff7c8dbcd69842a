"""The tree of commands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from notifier.cli.output import EXIT_STATUSES, say

MARKUP: Final = "markdown"
HELP_NAMES: Final = ["-h", "--help"]
ANYWHERE: Final = ("--config", "--partition")  # options of all commands

# Where each command is written: module and name. A module is imported when its command is asked for, because each
# takes part of a second that the others need not wait for.
PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "worker": ("worker", "worker"),
    "send": ("send", "send"),
    "send-file": ("send", "send_file"),
    "status": ("explain", "status"),
    "cancel": ("cancel", "cancel"),
    "pause": ("pause", "pause"),
    "resume": ("pause", "resume"),
    "line": ("explain", "line"),
    "explain": ("explain", "explain"),
    "routes": ("explain", "routes"),
    "history": ("history", "history"),
    "health": ("health", "health"),
    "stats": ("stats", "stats"),
    "serve": ("serve", "serve"),
    "audit": ("audit", "audit"),
    "preview": ("trials.preview", "preview"),
    "trace": ("trials.record", "trace"),
    "config": ("configuration.config", "commands"),
    "redis": ("configuration.redis", "commands"),
    "users": ("users", "commands"),
    "partition": ("configuration.partition", "partition"),
}


def _made(name: str) -> Any:
    module, attribute = PLACES[name]
    written = getattr(import_module(f"notifier.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=MARKUP)
    if isinstance(written, typer.Typer):
        alone.add_typer(written, name=name)
    else:
        alone.command(name)(written)
    made = typer.main.get_group(alone).commands[name]
    for command in (made, *getattr(made, "commands", {}).values()):
        _show_flags(command.get_params(typer.Context(command, help_option_names=HELP_NAMES)))
    return made


def _show_flags(options: Iterable[Any]) -> None:
    """Let the help name no type of what takes no value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""


class Commands(TyperGroup):
    """The command `notifier`. Its --config and --partition may stand anywhere, also behind the name of a command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": dict.fromkeys(PLACES)})

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """See click: it is made when it is asked for."""
        return _made(cmd_name) if cmd_name in PLACES else None

    def get_params(self, ctx: Any) -> list[Any]:
        """See click."""
        found = super().get_params(ctx)
        _show_flags(found)
        return found

    def invoke(self, ctx: Any) -> Any:
        """See click: Ctrl-C at a question is Ctrl-C."""
        try:
            return super().invoke(ctx)
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click: those two go to the front, where they are read."""
        for option in ANYWHERE:
            end = args.index("--") if "--" in args else len(args)
            at = next((i for i in range(end) if args[i].partition("=")[0] == option), 0)
            last = at + 1 + (args[at : at + 1] == [option])
            args = [*args[at:last], *args[:at], *args[last:]]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Commands,
    help="Send push notifications, and limit how many each user receives.",
    epilog=EXIT_STATUSES,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},
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
    partition: Annotated[
        int | None, typer.Option(min=0, max=63, help="of a fleet in several: the one to look at", show_default=False)
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    context.obj = config
    if partition is not None:
        os.environ["NOTIFIER_PARTITION"] = str(partition)
