"""The tree of commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.metadata import version
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperGroup

from notifier.cli.given import GIVEN, Given
from notifier.cli.output import EXIT_STATUSES, say

MARKUP: Final = "markdown"
HELP_NAMES: Final = ["-h", "--help"]
ANYWHERE: Final = ("--config", "--partition")  # options of all commands

# Each command: its module, its function, and its options of `Given`. A module is imported when its command is called,
# because each import takes part of a second.
COMMANDS: Final[Mapping[str, tuple[str, str, Sequence[str]]]] = {
    "worker": ("worker", "worker", ()),
    "send": ("send", "send", ("json",)),
    "send-file": ("send", "send_file", ("json",)),
    "status": ("explain", "status", ("json",)),
    "cancel": ("cancel", "cancel", ("yes", "json")),
    "pause": ("pause", "pause", ("who", "json")),
    "resume": ("pause", "resume", ("who", "json")),
    "line": ("explain", "line", ("json",)),
    "explain": ("explain", "explain", ("json",)),
    "routes": ("explain", "routes", ("json",)),
    "history": ("history", "history", ("json",)),
    "health": ("health", "health", ("json",)),
    "stats": ("stats", "stats", ("json",)),
    "serve": ("serve", "serve", ()),
    "audit": ("audit", "audit", ("json",)),
    "preview": ("trials.preview", "preview", ("json",)),
    "trace record": ("trials.record", "record", ("json",)),
    "config init": ("configuration.first_config", "init", ()),
    "config check": ("configuration.config", "check", ("json",)),
    "config schema": ("configuration.config", "schema", ()),
    "config apply": ("configuration.config", "apply", ("message", "who", "yes", "json")),
    "config revert": ("configuration.config", "revert", ("message", "who", "yes", "json")),
    "config withdraw": ("configuration.config", "withdraw_rates", ("who", "yes", "json")),
    "config log": ("configuration.config", "log", ("json",)),
    "config status": ("configuration.config", "status", ("json",)),
    "redis acl": ("configuration.redis", "acl", ("json",)),
    "users export": ("users", "export", ()),
    "users apply": ("users", "apply", ()),
    "users forget": ("users", "forget", ("yes", "json")),
    "partition": ("configuration.partition", "partition", ("json",)),
}
GROUPS: Final[Mapping[str, str]] = {
    "trace": "Record traffic, to try rates on it with `notifier preview`.",
    "config": "Write and check the configuration, and publish its rates.",
    "redis": "Print the users that Redis needs for the notifier.",
    "users": "Copy the choices of users, or forget a user.",
}


def _made(name: str) -> Any:
    alone = typer.Typer(rich_markup_mode=MARKUP)
    if name in GROUPS:
        group = typer.Typer(help=GROUPS[name], no_args_is_help=True)
        for each in COMMANDS:
            if each.startswith(f"{name} "):
                group.command(each.removeprefix(f"{name} "))(_read(each))
        alone.add_typer(group, name=name)
    else:
        alone.command(name)(_read(name))
    made = typer.main.get_group(alone).commands[name]
    for command in (made, *getattr(made, "commands", {}).values()):
        _show_flags(command.get_params(typer.Context(command, help_option_names=HELP_NAMES)))
    return made


def _read(name: str) -> Callable[..., None]:
    """The function of a command, with the shared options behind its own. Their values go into GIVEN."""
    module, function, shared = COMMANDS[name]
    command = getattr(import_module(f"notifier.cli.{module}"), function)
    types, defaults = get_type_hints(Given, include_extras=True), Given()

    @wraps(command)
    def run(**given: Any) -> None:
        vars(GIVEN).update(vars(Given(GIVEN.config, **{option: given.pop(option) for option in shared})))
        command(**given)

    of_function = signature(command, eval_str=True)
    options = [*of_function.parameters.values()]
    options += [Parameter(n, Parameter.KEYWORD_ONLY, default=getattr(defaults, n), annotation=types[n]) for n in shared]
    # Typer makes the options from these two.
    run.__signature__ = of_function.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _show_flags(options: Iterable[Any]) -> None:
    """Keep the help from naming a type for flags, which take no value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""


class Commands(TyperGroup):
    """The command `notifier`. Its --config and --partition may come anywhere, also after the name of a command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": dict.fromkeys(name.partition(" ")[0] for name in COMMANDS)})

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """See click: makes a command when it is called."""
        return _made(cmd_name) if cmd_name in self.commands else None

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)
        _show_flags(found)
        return found

    def invoke(self, ctx: Any) -> Any:
        """See click: raises KeyboardInterrupt again, which click turns into Abort at a question."""
        try:
            return super().invoke(ctx)
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click: moves the options of ANYWHERE to the front, where click reads them."""
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
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="the configuration  [default: $NOTIFIER_CONFIG, else config/notifier.yaml]", show_default=False
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, max=63, help="look only at this partition of the fleet", show_default=False)
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    GIVEN.config = config
    if partition is not None:
        os.environ["NOTIFIER_PARTITION"] = str(partition)
