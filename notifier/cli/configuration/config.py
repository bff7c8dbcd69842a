"""Commands about the configuration: config check, schema, apply, revert, withdraw, log, status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from structlog.testing import capture_logs

from notifier.cli.given import GIVEN
from notifier.cli.options import duration_us, file_of, usable, without_rates
from notifier.cli.output import Rows, answer, complain, confirm, fail, log_of, say_before
from notifier.cli.output import moment as shown
from notifier.errors import RedisUnusableError, SettingsError
from notifier.operations.action_log import logged, read_actions
from notifier.settings import Settings, load_settings, read_source, settings_path
from notifier.settings.advice import advise
from notifier.settings.errors import line_of
from notifier.settings.loading import unread
from notifier.settings.rates import Change, change_to
from notifier.settings.secret_files import read_by_others
from notifier.settings.templates import schema_text
from notifier.settings.yaml_source import Source
from notifier.store.connection import client_of
from notifier.store.partitions import opened_all, ranges
from notifier.store.pipelining import on_all
from notifier.store.published import (
    HOLDS_IN_US,
    MAX_DELAY_US,
    followers,
    newest,
    publish,
    published_now,
    rates_before,
    rates_in_force,
    withdraw,
)
from notifier.units import counted, moment

MAX_SHOWN: Final = 40  # changed lines
OWN_FILES: Final = "none; each worker follows its own file"


def check(
    file: Annotated[
        Path | None, typer.Argument(help="the file  [default: the configured one]", show_default=False)
    ] = None,
    *,
    worker: Annotated[
        bool, typer.Option("--worker", help="report what a worker on this host would refuse as errors")
    ] = False,
) -> None:
    """Print all errors of a configuration, and warn of probable mistakes. Exit status 1 if there is an error.

    It also warns of problems with which a worker on this host would not start: keys, accounts and certificates that are
    missing, unreadable, expired or do not fit; wrong settings for Redis; functions that cannot be imported. With
    --worker these are errors. The command does not connect to Redis.
    """
    path = settings_path(file_of(file))
    try:
        settings = load_settings(path)
        refused, said = _started(settings)
        if worker and refused:
            raise SettingsError("\n".join(refused))  # noqa: TRY301 - printed like any error of the file
    except SettingsError as error:
        if not GIVEN.json:
            fail(str(error))
        value = {"file": str(path), "right": False, "errors": str(error).splitlines(), "warnings": []}
        answer(value, right=False)
    warnings = [line_of(str(path), problem) for problem in advise(settings, read_source(path))] + refused + said
    warnings += read_by_others(settings)
    warnings += unread(os.environ, settings.providers.platforms())
    if not settings.categories:
        warnings.append(f"{path}: has no categories: every notification is of `default`, by the limits of user alone")
    categories = settings.categories.values()
    some = any(each.overall for each in categories) or settings.tiers or settings.users
    if not some and all(each.policy().is_empty for each in (settings.user, *categories)):
        warnings.append(f"{path}: limits nobody: neither user nor a category has a rule")
    answer(
        {"file": str(path), "right": True, "version": settings.rates_version, "errors": [], "warnings": warnings},
        *(f"warning: {warning}" for warning in warnings),
        f"{path} is right: {_counts(settings)}",
        f"its rates are {settings.rates_version}",
    )


def _started(settings: Settings) -> tuple[list[str], list[str]]:
    """Why a worker on this host would not start or could send nothing, and its warnings.

    On a producer's host these are no errors, because producers need no keys.
    """
    from workers.configuration.wiring import provider_builders  # noqa: PLC0415 - it loads RQ, which only this command needs
    from workers.rq.functions import AllowedFunctions  # noqa: PLC0415 - as above

    sys.path.append(str(Path.cwd()))  # as a worker does
    builds: list[Callable[[], object]] = [partial(client_of, settings.redis), *provider_builders(settings)]
    builds.append(partial(AllowedFunctions, settings.worker.functions))
    sends = settings.providers.platforms() or settings.worker.functions
    found = [] if sends else ["providers names no platform: nothing can be sent"]
    with capture_logs() as logged:  # log lines would mix with the answer
        for build in builds:
            try:
                build()
            except (SettingsError, RedisUnusableError) as error:
                found.append(f"{error}; without it no worker starts on this host")
    said = [" ".join(str(value) for key, value in entry.items() if key != "log_level") for entry in logged]
    return list(dict.fromkeys(found)), list(dict.fromkeys(said))  # several apps may have the same problem


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    sys.stdout.write(schema_text())


def apply(
    file: Annotated[Path, typer.Argument(help="the file with the rates for all hosts")],
    *,
    after: Annotated[str, typer.Option("--in", help="all workers change after this time, at one moment")] = "2s",
    replace: Annotated[
        bool, typer.Option("--replace", help="remove published rates whose section is not in the file")
    ] = False,
) -> None:
    """Publish the rates of a file (user, tiers, users, categories, limits) to the workers on all hosts, through Redis.

    First the command shows what changes, and asks.

    Workers use these rates instead of those in their own files, until you apply others or withdraw these. They read all
    other sections, such as the providers, from their own files. Waiting notifications follow the new rates.
    """
    rates, delay_us = load_settings(file).rates, duration_us(after, "--in", max_us=MAX_DELAY_US)
    # Rates that this host's own configuration would refuse are not published.
    own = load_settings(GIVEN.config, rates=rates, of=read_source(file))
    _apply(own, delay_us, replaces=replace)


def revert() -> None:
    """Publish the applied rates from before the present ones. Run it again to undo it.

    First the command shows what changes, and asks. Exit status 1 if there were none before; `config withdraw` lets
    each worker follow its own file.
    """
    settings = without_rates()
    with opened_all(settings) as partitions:
        before = partitions.ask_any(rates_before)
    if before is None:
        fail("no applied rates were in force before those of now; notifier config withdraw takes these back")
    own = load_settings(GIVEN.config, rates=before, of=Source(name="the rates published before"))
    _apply(own, HOLDS_IN_US, replaces=True)


def _apply(own: Settings, delay_us: int, *, replaces: bool) -> None:
    """Show what changes, ask, publish and log. own: the settings of this host with the new rates."""
    with opened_all(own) as partitions:
        known = partitions.ask_any(published_now)
        before = usable(lambda: partitions.ask_any(rates_in_force)[1], lambda: None)
    change = change_to(load_settings(GIVEN.config).rates if before is None else before, own.rates)
    back = "withdraw" if before is None else "revert"
    _compare(change, replaces=replaces)
    confirm("apply?")
    with opened_all(own) as partitions:
        if (now := partitions.ask_any(published_now)) != known:
            did = f"applied {now.version}" if now.version else "withdrew the rates"
            fail(f"others {did} meanwhile: nothing was changed; run it again to see the difference")
        with logged(log_of(partitions), "apply rates", own.rates_version) as words:
            words.extend(filter(None, [GIVEN.message, *change.lines]))
            published = on_all(partitions, lambda redis: publish(redis, own.rates, delay_us))[0]
    answer(
        {"version": published.version, "at": moment(published.at_us)},
        f"{published.version} holds from {shown(moment(published.at_us))} on",
        _counts(own),
        f"see who follows it: notifier config status; go back: notifier config {back}",
    )


def withdraw_rates() -> None:
    """Withdraw applied rates: each worker follows its own file again. Exit status 1 if none were applied."""
    settings = without_rates()
    confirm("take the applied rates back from all workers?")
    with opened_all(settings) as partitions, logged(log_of(partitions), "withdraw rates", "") as words:
        taken_back = withdraw(partitions)
        words.append("taken back" if taken_back else "none were applied")
    said = "each worker follows its own file again" if taken_back else "no rates were applied"
    answer({"withdrawn": taken_back}, said, right=taken_back)


def log(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="show at most this many")] = 20,
) -> None:
    """Show who changed what, by a command, page or file, the last change first: rates, pauses, cancellations."""
    with opened_all(without_rates()) as partitions:
        found = read_actions(partitions, limit)
    rows = [(a.at, f"{a.who}\n{a.address}", f"{a.action}\n{a.of}", a.answer) for a in found]
    value = [asdict(each) for each in found]
    answer(value, Rows(("at", "by", "what", "how"), rows, empty="nothing was changed"))


def status() -> None:
    """Show which rates each worker follows. Exit status 1 if they differ, if one refused its file, or if none runs.

    They also differ while some workers do not follow applied rates yet.
    """
    with opened_all(without_rates()) as partitions:
        at, found = followers(partitions)
    published = newest(at)
    applied = f"{published.version}, from {shown(moment(published.at_us))} on" if published.version else OWN_FILES
    lacking = [n for n, each in at.items() if each.version != published.version]
    versions = {published.version, *(worker.version for worker in found)} - {""}
    agreed = bool(found) and len(versions) == 1 and not any(worker.problem for worker in found) and not lacking
    rows = [(w.name, w.host, w.version, w.source) for w in found]
    refused = [f"{worker.name} refused: {worker.problem}" for worker in found if worker.problem]
    answer(
        {"published": asdict(published), "lacking": lacking, "agreed": agreed, "workers": [asdict(w) for w in found]},
        f"applied: {applied}",
        Rows(("worker", "host", "rates", "from"), rows, empty="no worker is running"),
        *refused,
        *([f"not in partition {ranges(lacking)}: apply or withdraw them again"] if lacking else []),
        *([f"they differ: {', '.join(sorted(versions))}"] if len(versions) > 1 else []),
        right=agreed,
    )


def _counts(settings: Settings) -> str:
    users = counted(len(settings.users), "user")
    categories = counted(len(settings.categories), "category", "categories")
    return f"{categories}, {counted(len(settings.tiers), 'tier')}, {users} with rules of their own"


def _compare(change: Change, *, replaces: bool) -> None:
    """Show what would change; raise typer.Exit if sections would be lost."""
    if change.lost and not replaces:
        complain(f"the file has no {' and no '.join(change.lost)}, but such rates are in force;")
        fail("write all rates into the file, or give --replace to remove these")
    say_before("what changes:" if change.lines else "nothing changes")
    for line in change.lines[:MAX_SHOWN]:
        say_before(f"  {line}")
    if len(change.lines) > MAX_SHOWN:
        say_before(f"  and {len(change.lines) - MAX_SHOWN:,} more")
