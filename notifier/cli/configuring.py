"""Commands about the configuration: config check, config schema."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from notifier.advice import advise
from notifier.cli.output import JsonOption, Status, complain, print_json, say
from notifier.errors import SettingsError
from notifier.json_schema import schema_text
from notifier.settings import load_settings, settings_path
from notifier.settings_errors import line_of
from notifier.yaml_source import decode, read_yaml

commands = typer.Typer(help="Check the configuration, and describe it to editors.", no_args_is_help=True)


@commands.command()
def check(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="the YAML  [default: the configured one]", show_default=False)
    ] = None,
    *,
    json: JsonOption = False,
) -> None:
    """Say all that is wrong in a configuration, and warn of what cannot be meant. Status 1 where it is wrong."""
    path = settings_path(file or context.obj)
    try:
        settings = load_settings(path)
    except SettingsError as error:
        if json:
            print_json({"file": str(path), "right": False, "errors": str(error).splitlines(), "warnings": []})
        else:
            complain(str(error))
        raise typer.Exit(Status.NOT_RIGHT) from None
    warnings = [line_of(str(path), problem) for problem in advise(settings, read_yaml(decode(path.read_bytes())))]
    if json:
        print_json({"file": str(path), "right": True, "errors": [], "warnings": warnings})
        return
    for warning in warnings:
        say(f"warning: {warning}")
    counts = f"{len(settings.tiers)} tiers, {len(settings.users)} users with rules of their own"
    say(f"{path} is right: {len(settings.categories)} categories, {counts}")


@commands.command()
def schema() -> None:
    """Print the JSON Schema by which an editor completes and checks the YAML."""
    sys.stdout.write(schema_text())
