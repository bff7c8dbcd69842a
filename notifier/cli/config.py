"""Commands about the configuration: config check, schema, apply, withdraw, status."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from structlog.testing import capture_logs

from notifier.cli.first_config import init
from notifier.cli.output import JsonOption, Status, complain, counted, duration_us, moment, print_json, print_rows, say
from notifier.errors import SettingsError
from notifier.operations.apply import Change, change_to, find_followers, publish_to_all, withdraw_from_all
from notifier.operations.in_force import read_known, with_users
from notifier.settings import Settings, load_settings, read_source, settings_path
from notifier.settings.advice import advise
from notifier.settings.errors import line_of
from notifier.settings.json_schema import schema_text
from notifier.settings.rates import rates_in
from notifier.settings.reference import reference_text
from notifier.shards.map import connect_all, on_shard
from notifier.units import UNITS

MAX_SHOWN: Final = 40  # of the lines that change

commands = typer.Typer(help="Write and check the configuration, and publish its rates.", no_args_is_help=True)
commands.command()(init)


@commands.command()
def check(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="the file  [default: the configured one]", show_default=False)
    ] = None,
    *,
    worker: Annotated[
        bool, typer.Option("--worker", help="treat what a worker on this host would refuse as an error")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print all errors of a configuration, and warn of what is probably a mistake. Exit status 1 if there is an error.

    It also warns of what a worker on this host would refuse at its start: keys, accounts and certificates that are
    missing, unreadable, expired or do not fit. With --worker that is an error.
    """
    path = settings_path(file or context.obj)
    try:
        settings = load_settings(path)
        refused, said = _started(settings)
        if worker and refused:
            raise SettingsError("\n".join(refused))  # noqa: TRY301 - told as all that is wrong
    except SettingsError as error:
        if json:
            print_json({"file": str(path), "right": False, "errors": str(error).splitlines(), "warnings": []})
        else:
            complain(str(error))
        raise typer.Exit(Status.NOT_RIGHT) from None
    warnings = [line_of(str(path), problem) for problem in advise(settings, read_source(path))] + refused + said
    if json:
        version = settings.rates_version
        print_json({"file": str(path), "right": True, "version": version, "errors": [], "warnings": warnings})
        return
    for warning in warnings:
        say(f"warning: {warning}")
    say(f"{path} is right: {_counts(settings)}")
    say(f"its rates are {settings.rates_version}")


def _started(settings: Settings) -> tuple[list[str], list[str]]:
    """Why a worker on this host would not start or could send nothing, and what it would warn of.

    Producers need no keys, so it is no mistake.
    """
    from workers.wiring import provider_builders  # noqa: PLC0415 - it loads RQ, which no other of these commands needs

    if not settings.providers.platforms():
        return ["providers names no platform: nothing can be sent"], []
    found = []
    with capture_logs() as logged:  # they would stand between the lines of the answer
        for build in provider_builders(settings):
            try:
                build()
            except SettingsError as error:
                found.append(f"{error}; without it no worker starts on this host")
    said = [" ".join(str(value) for key, value in entry.items() if key != "log_level") for entry in logged]
    return list(dict.fromkeys(found)), list(dict.fromkeys(said))  # once, however many apps share it


@commands.command()
def schema(
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="print docs/reference/configuration.md instead")] = False,
) -> None:
    """Print the JSON Schema of the configuration, for editors; or every key as a page to read."""
    sys.stdout.write(reference_text() if markdown else schema_text())


@commands.command()
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="the file whose rates are to apply on all hosts")],
    *,
    after: Annotated[str, typer.Option("--in", help="how long until all workers change, at one moment")] = "2s",
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="remove rates whose section is not in the file")] = False,
    json: JsonOption = False,
) -> None:
    """Publish the rates of a file (user, tiers, users, categories, limits) to the workers on all hosts, through Redis.

    First it shows what changes, and asks.

    They replace those of each worker's own file, until others are applied or they are withdrawn. The other sections,
    such as the providers, stay each host's own. Waiting notifications follow the new rates.
    """
    settings, delay_us = load_settings(file), duration_us(after, "--in", max_us=UNITS["m"])
    rates = with_users(rates_in(read_source(file).data), settings)
    own = load_settings(context.obj, rates=rates)  # what cannot stand in this host's own file is not sent to others
    with connect_all(own) as clients:
        for name, redis in clients.items():  # all or none, as far as can be known
            with on_shard(name):
                before = read_known(settings_path(context.obj), redis).rates
                _compare(name, change_to(before, rates), replaces=replace, shows=not json)
        if not yes:
            _confirm()
        published = publish_to_all(clients, rates, delay_us)
    at = datetime.fromtimestamp(published.at_us / 1_000_000, tz=UTC)
    if json:
        print_json({"version": published.version, "at": at})
        return
    say(f"{published.version} holds from {moment(at)} on")
    say(_counts(settings))
    say("see who follows it: notifier config status")


@commands.command("withdraw")
def withdraw_rates(context: typer.Context, *, json: JsonOption = False) -> None:
    """Take applied rates back: each worker follows its own file again. Exit status 1 if none were applied."""
    with connect_all(_without_rates(context)) as clients:
        taken_back = withdraw_from_all(clients)
    if json:
        print_json({"withdrawn": taken_back})
    else:
        say("each worker follows its own file again" if taken_back else "no rates were applied")
    if not taken_back:
        raise typer.Exit(Status.NOT_RIGHT)


@commands.command()
def status(context: typer.Context, *, json: JsonOption = False) -> None:
    """Show which rates each worker follows. Exit status 1 if they differ, if one refused its file, or if none runs."""
    with connect_all(_without_rates(context)) as clients:
        applied, found = find_followers(clients)
    versions = {worker.version for _, worker in found}
    agreed = len(versions) == 1 and not any(worker.problem for _, worker in found)
    agreed = agreed and len({published.version for published in applied.values()}) == 1
    if json:
        told = [asdict(worker) | ({"shard": name} if name else {}) for name, worker in found]
        each = {name: asdict(published) for name, published in applied.items()}
        print_json({"published": each.get("", each), "agreed": agreed, "workers": told})
    else:
        for name, published in applied.items():
            where = f"applied{f' on {name}' if name else ''}"
            say(f"{where}: {published.version or 'none; each worker follows its own file'}")
        rows = [(w.name, w.host, w.version, w.source, *([name] if name else [])) for name, w in found]
        columns = ("worker", "host", "rates", "from", *([] if "" in applied else ["shard"]))
        print_rows("", columns, rows, empty="no worker is running")
        for _, worker in found:
            if worker.problem:
                say(f"{worker.name} refused: {worker.problem}")
        if len(versions) > 1:
            say(f"they differ: {', '.join(sorted(versions))}")
    if not agreed:
        raise typer.Exit(Status.NOT_RIGHT)


def _without_rates(context: typer.Context) -> Settings:
    """The settings, of which Redis alone is needed: rates that are wrong do not stand in the way of looking at them."""
    return load_settings(context.obj, rates={})


def _counts(settings: Settings) -> str:
    users = counted(len(settings.users) + len(settings.users_in_files), "user")
    categories = counted(len(settings.categories), "category", "categories")
    return f"{categories}, {counted(len(settings.tiers), 'tier')}, {users} with rules of their own"


def _compare(shard: str, change: Change, *, replaces: bool, shows: bool) -> None:
    """Show what would change; raise typer.Exit where sections would be lost."""
    if change.lost and not replaces:
        complain(f"the file has no {' and no '.join(change.lost)}, but such rates are in force;")
        complain("write all rates into the file, or give --replace to remove these")
        raise typer.Exit(Status.NOT_RIGHT)
    if shows:
        where = f" on {shard}" if shard else ""
        say(f"what changes{where}:" if change.lines else f"nothing changes{where}")
        for line in change.lines[:MAX_SHOWN]:
            say(f"  {line}")
        if len(change.lines) > MAX_SHOWN:
            say(f"  and {len(change.lines) - MAX_SHOWN:,} more")


def _confirm() -> None:
    """Ask; raise typer.Exit where the answer is no, or nobody answers."""
    if not sys.stdin.isatty():
        complain("there is no terminal to ask at; give --yes")
        raise typer.Exit(Status.USAGE)
    if not typer.confirm("apply?"):
        raise typer.Exit(Status.NOT_RIGHT)
