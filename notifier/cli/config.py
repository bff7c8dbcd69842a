"""Commands about the configuration: config check, schema, apply, withdraw, status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from notifier.cli.output import JsonOption, Status, complain, counted, duration_us, moment, print_json, print_rows, say
from notifier.errors import SettingsError
from notifier.providers.apns import tls
from notifier.settings import Settings, load_settings, read_source, settings_path
from notifier.settings.advice import advise
from notifier.settings.errors import line_of
from notifier.settings.json_schema import schema_text
from notifier.settings.rates import rates_in
from notifier.settings.schema_providers import ApnsSettings, FcmSettings, WebPushSettings
from notifier.settings.users_files import as_written
from notifier.shards.map import connect_all, on_shard
from notifier.store.connection import ask
from notifier.store.published import Follower, Published, followers, publish, withdraw
from notifier.units import UNITS

commands = typer.Typer(help="Check the configuration, publish its rates, describe it to editors.", no_args_is_help=True)


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
    warnings = [line_of(str(path), problem) for problem in advise(settings, read_source(path))]
    lacking = dict.fromkeys(_lacking(settings, os.environ))  # once, however many apps share it
    warnings += [f"{problem}; without it no worker starts on this host" for problem in lacking]
    if json:
        version = settings.rates_version
        print_json({"file": str(path), "right": True, "version": version, "errors": [], "warnings": warnings})
        return
    for warning in warnings:
        say(f"warning: {warning}")
    say(f"{path} is right: {_counts(settings)}")
    say(f"its rates are {settings.rates_version}")


def _lacking(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield why secrets that a worker needs cannot be read here. Producers need none, so that is no mistake."""
    for platform in settings.providers.platforms().values():
        for app in platform.app_names:
            try:
                match platform:
                    case FcmSettings(client="pyfcm"):
                        platform.read_service_account(environ, app)
                    case WebPushSettings(client="pywebpush"):
                        platform.read_key(environ, app)
                    case ApnsSettings(client="h2" | "apns2"):
                        mine = platform.app(app)
                        if mine.cert_file:
                            tls.context(mine.ca_file, mine.cert_file, mine.cert_key_file)
                        else:
                            platform.read_key(environ, app)
            except SettingsError as error:
                yield str(error)


@commands.command()
def schema() -> None:
    """Print the JSON Schema by which an editor completes and checks the YAML."""
    sys.stdout.write(schema_text())


@commands.command()
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="the YAML whose rates are to hold everywhere")],
    *,
    after: Annotated[str, typer.Option("--in", help="when all workers change, at the same moment")] = "2s",
    json: JsonOption = False,
) -> None:
    """Publish the rates of a file (user, tiers, users, categories) to the workers on all hosts, through Redis.

    They stand in the place of those in each worker's own file, until others are applied or they are withdrawn. The
    rest of the file, the providers above all, is each host's own. What waits is timed anew.
    """
    settings, delay_us = load_settings(file), duration_us(after, "--in", most_us=UNITS["m"])
    rates = rates_in(read_source(file).data)
    if settings.users_in_files:  # on another host the same path may name nothing
        rates["users"] = {**rates.get("users", {}), **as_written(settings.users_in_files)}
    own = load_settings(context.obj, rates=rates)  # what cannot stand in this host's own file is not sent to others
    with connect_all(own) as clients:
        for name, redis in clients.items():  # all or none, as far as can be known
            with on_shard(name):
                ask(redis.ping)
        for name, redis in clients.items():
            with on_shard(name):
                published = ask(partial(publish, redis, rates, delay_us))
    at = datetime.fromtimestamp(published.at_us / 1_000_000, tz=UTC)
    if json:
        print_json({"version": published.version, "at": at})
        return
    say(f"{published.version} holds from {moment(at)} on")
    say(_counts(settings))
    say("see who follows it: notifier config status")


@commands.command("withdraw")
def withdraw_rates(context: typer.Context, *, json: JsonOption = False) -> None:
    """Take applied rates back: each worker follows its own file again. Status 1 where none were applied."""
    taken_back = False
    with connect_all(_without_rates(context)) as clients:
        for name, redis in clients.items():
            with on_shard(name):
                taken_back |= ask(partial(withdraw, redis))
    if json:
        print_json({"withdrawn": taken_back})
    else:
        say("each worker follows its own file again" if taken_back else "no rates were applied")
    if not taken_back:
        raise typer.Exit(Status.NOT_RIGHT)


@commands.command()
def status(context: typer.Context, *, json: JsonOption = False) -> None:
    """Show which rates each worker follows. Status 1 where they differ, one has refused its file, or no worker runs."""
    applied: dict[str, Published] = {}
    found: list[tuple[str, Follower]] = []
    with connect_all(_without_rates(context)) as clients:
        for name, redis in clients.items():
            with on_shard(name):
                applied[name], workers = ask(partial(followers, redis))
                found += [(name, worker) for worker in workers]
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
