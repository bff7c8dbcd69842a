"""The command `stats`: the present state, and the last minutes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from notifier.cli.given import GIVEN
from notifier.cli.options import without_rates
from notifier.cli.output import Rows, answer, moment
from notifier.operations.problems import problem_lines
from notifier.operations.route_view import NO_WORKER
from notifier.operations.stats import COUNTS, counts_of, read_stats
from notifier.operations.throttled import read_throttled
from notifier.store.partitions import opened_all
from notifier.texts import at_most, seconds_text
from notifier.units import counted

EVERY_S: Final = 2.0


def stats(
    *,
    minutes: Annotated[int, typer.Option(min=1, max=4320, help="how many minutes, with the present one")] = 10,
    watch: Annotated[bool, typer.Option("--watch", help="show it again every two seconds, until Ctrl-C")] = False,
) -> None:
    """Show sends by minute, lateness and latency, what waits and why, the routes, and the workers."""
    with opened_all(without_rates()) as redis:
        while True:
            found = read_stats(redis, minutes).as_json() | {"throttled": read_throttled(redis)}
            if watch and not GIVEN.json:
                Console().clear()
            answer(found, *_shown(found))
            if not watch:
                return
            Event().wait(EVERY_S)  # only Ctrl-C ends the wait early


def _shown(found: dict[str, Any]) -> Iterator[str | Rows]:
    yield from problem_lines(found) or ["all is well"]
    rows = [_row(each) for each in found["minutes"]]
    yield Rows(("minute", *COUNTS, "late p50", "p99"), rows)
    number = len(rows)
    outcomes = [
        (each["route"], each["category"], each["outcome"], each["count"], f"{each['count'] / number:.1f}")
        for each in found["outcomes"]
    ]
    title = f"what ended in {counted(number, 'minute')}"
    yield Rows(("route", "category", "outcome", "count", "a minute"), outcomes, title, "nothing ended")
    slow = [("late", name, each) for name, each in found["lateness"].items()]
    slow += [("provider", name, each) for name, each in found["provider_latency"].items()]
    quantiles = [(what, of, e["count"], at_most(e["p50"]), at_most(e["p99"])) for what, of, e in slow]
    yield Rows(("what", "of", "count", "p50", "p99"), quantiles)
    users = found["throttled"]
    most = [_throttled(each) for each in users["users"]]
    yield Rows(("user", "waiting", "what for", "next"), most, f"waits most: {users['says']}", "no user has a backlog")
    yield from _now(found["now"])


def _now(now: dict[str, Any]) -> Iterator[str | Rows]:
    lanes = [
        (name, each["queued"], seconds_text(each["oldest_queued_s"]) if each["queued"] else "", each["waiting"])
        for name, each in now["lanes"].items()
    ]
    yield Rows(("lane", "queued", "oldest queued", "scheduled"), lanes, "now")
    waits = [(each["what"], each["waiting"]) for each in now["waits"]]
    yield Rows(("waits for", "how many"), waits, empty="nothing waits")
    late = f"{now['overdue']:,}, the oldest for {seconds_text(now['oldest_due'])}" if now["overdue"] else "none"
    yield f"overdue: {late}"
    yield f"in flight: {now['in_flight']:,}"
    held = "; ".join(f"{each['route']} {each['state']}: {each['why']}" for each in now["routes"])
    yield f"routes: {held or ('all working' if now['works'] else f'unknown: {NO_WORKER}')}"
    workers = ", ".join(f"{w['name']}{'' if w['healthy'] else ' NOT healthy'}" for w in now["workers"])
    yield f"workers: {workers or 'none'}"


def _throttled(each: dict[str, Any]) -> tuple[object, ...]:
    what_for = each["why"] or ", ".join(f"{name} {n:,}" for name, n in each["categories"].items())
    at = each["next_at"]
    shown = each["until"] if at is None else moment(datetime.fromtimestamp(at, tz=UTC))
    return (each["user"], each["waiting"], what_for, shown)


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    at = moment(datetime.fromtimestamp(each["at"], tz=UTC)).partition(".")[0].rpartition(":")[0]
    return (at, *counts_of(each), *(at_most(each["lateness"][share]) for share in ("p50", "p99")))
