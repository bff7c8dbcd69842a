"""The command stats: what happens now and what happened in the last minutes."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Event
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from notifier.cli.output import JsonOption, counted, moment, print_json, print_rows, say
from notifier.operations.stats import read_stats
from notifier.operations.throttled import read_throttled
from notifier.settings import load_settings
from notifier.shards.map import connect_all

EVERY_S: Final = 2.0


def stats(
    context: typer.Context,
    *,
    minutes: Annotated[int, typer.Option(min=1, max=4320, help="how many, the present one among them")] = 10,
    watch: Annotated[bool, typer.Option("--watch", help="again every two seconds, until Ctrl-C")] = False,
    json: JsonOption = False,
) -> None:
    """Show throughput by minute, how late and how slow, what waits and is due, closed routes, and workers."""
    with connect_all(load_settings(context.obj, rates={})) as clients:
        while True:
            told = read_stats(dict(clients), minutes).as_json() | {"throttled": read_throttled(clients)}
            if json:
                print_json(told)
            else:
                if watch:
                    Console().clear()
                _show(told)
            if not watch:
                return
            Event().wait(EVERY_S)  # nobody sets it; Ctrl-C ends it


def _show(told: dict[str, Any]) -> None:
    rows = [_row(each) for each in told["minutes"]]
    print_rows("", ("minute", "accepted", "delivered", "other ends", "retried", "late p50", "p99"), rows)
    number = len(rows)
    outcomes = [
        (each["route"], each["category"], each["outcome"], each["count"], f"{each['count'] / number:.1f}")
        for each in told["outcomes"]
    ]
    title = f"what ended in {counted(number, 'minute')}"
    print_rows(title, ("route", "category", "outcome", "count", "a minute"), outcomes, empty="nothing ended")
    slow = [("late", name, each) for name, each in told["lateness"].items()]
    slow += [("provider", name, each) for name, each in told["provider_latency"].items()]
    print_rows(
        "", ("what", "of", "count", "p50", "p99"), [(w, n, e["count"], _s(e["p50"]), _s(e["p99"])) for w, n, e in slow]
    )
    _show_throttled(told["throttled"])
    for shard, now in told["now"].items():
        of = "" if shard == "redis" else f"{shard}: "
        lanes = [
            (n, e["queued"], e["waiting"], e["due_users"], _s(e["oldest_due_s"] if e["due_users"] else None))
            for n, e in now["lanes"].items()
        ]
        print_rows(f"{of}now", ("lane", "queued", "waiting", "users due", "oldest due"), lanes)
        say(f"{of}in flight {now['in_flight']}, waiting for a time of their own {now['later']}")
        held = ", ".join(f"{each['route']} {each['state']}" for each in now["routes"])
        say(f"{of}routes: {held or 'all open'}")
        workers = ", ".join(f"{w['name']}{'' if w['healthy'] else ' NOT healthy'}" for w in now["workers"])
        say(f"{of}workers: {workers or 'none'}")


def _show_throttled(told: dict[str, Any]) -> None:
    rows = [
        (
            each["user"],
            each["waiting"],
            ", ".join(f"{name} {n:,}" for name, n in each["categories"].items()),
            moment(datetime.fromtimestamp(each["next_at"], tz=UTC)),
        )
        for each in told["users"]
    ]
    title = "waits most" if told["is_all"] else "waits most, of some users by chance"
    print_rows(title, ("user", "waiting", "of these", "looked at next"), rows, empty="no user waits")


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    at = moment(datetime.fromtimestamp(each["at"], tz=UTC)).partition(".")[0].rpartition(":")[0]
    others = sum(each["ended"].values()) - each["ended"].get("delivered", 0)
    late = each["lateness"]
    ends = (each["ended"].get("delivered", 0), others, each.get("retried", 0))
    return (at, each["accepted"], *ends, _s(late["p50"]), _s(late["p99"]))


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
