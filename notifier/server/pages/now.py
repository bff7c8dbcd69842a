"""The page Now: lanes, closed routes, workers, the last minutes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from notifier.server.html import Html, counted, moment, span, table, tag
from notifier.server.pages.layout import View, dead_shards, document, link, when


def now_page(told: dict[str, Any], view: View) -> str:
    """The page, of what `Stats.as_json` tells."""
    body: list[Any] = [tag("h1", "Now"), dead_shards(told), _figures(told), _plots()]
    for shard, now in told["now"].items():
        of = "" if shard == "redis" else f" on {shard}"
        body += [tag("h2", f"Lanes{of}"), _lanes(now)]
        body += [tag("h2", f"Closed routes{of}"), _routes(now), tag("h2", f"Workers{of}"), _workers(now)]
    body += [
        tag("h2", "Who waits most"),
        _throttled(told["throttled"], told["at"]),
        tag("h2", "Minutes"),
        _minutes(told),
    ]
    for title, key, of in (
        ("How late, by category", "lateness", "category"),
        ("How long providers take, by route", "provider_latency", "route"),
    ):
        rows = [(name, each["count"], _span(each["p50"]), _span(each["p99"])) for name, each in told[key].items()]
        body += [tag("h2", title), table((of, "count", "p50", "p99"), rows, "Nothing was sent.", slim=True)]
    number = len(told["minutes"])
    ends = [
        (o["route"], o["category"], o["outcome"], o["count"], f"{o['count'] / number:.1f}") for o in told["outcomes"]
    ]
    body += [
        tag("h2", f"What ended in {counted(number, 'minute')}"),
        table(("route", "category", "outcome", "count", "a minute"), ends, "Nothing ended.", slim=True),
    ]
    return document(view, "Now", body, renew=True, plots=True)


def _figures(told: dict[str, Any]) -> Html:
    """Large figures of this minute and of now; live.js keeps them up to date by their data-live."""
    minute, live = told["minutes"][-1], told["live"]
    delivered = minute["ended"].get("delivered", 0)
    shown = (
        ("accepted this minute", "accepted", f"{minute['accepted']:,}"),
        ("delivered this minute", "delivered", f"{delivered:,}"),
        ("other ends this minute", "others", f"{sum(minute['ended'].values()) - delivered:,}"),
        ("late, p99, this minute", "late", _span(minute["lateness"]["p99"]) or "\N{EN DASH}"),
        ("queued", "queued", f"{live['queued']:,}"),
        ("waiting", "waiting", f"{live['waiting']:,}"),
        ("oldest due", "oldest_due", span(live["oldest_due"]) if live["due_users"] else "none"),
    )
    return tag(
        "dl",
        [tag("div", tag("dt", name), tag("dd", value, data_live=key)) for name, key, value in shown],
        class_="figures",
    )


def _plots() -> Html:
    """Where live.js draws; hidden without it."""
    drawn = (
        ("throughput", "Notifications a minute", "Notifications accepted and ended by minute, in the last hour"),
        ("lateness", "How late, by minute", "How late notifications were by minute, in the last hour: p50 and p99"),
    )
    figures = [
        tag("figure", tag("figcaption", title), tag("div", id=f"plot-{name}", role="img", aria_label=says))
        for name, title, says in drawn
    ]
    return tag("div", figures, id="plots", class_="plots", hidden=True)


def _lanes(now: dict[str, Any]) -> Html:
    rows = [
        (
            name,
            each["queued"],
            each["waiting"],
            each["due_users"],
            span(each["oldest_due_s"]) if each["due_users"] else "",
        )
        for name, each in now["lanes"].items()
    ]
    return table(("lane", "queued", "waiting", "users due", "oldest due"), rows, slim=True)


def _routes(now: dict[str, Any]) -> Html:
    rows = [
        (each["route"], each["state"], each["reason"] or each["kind"] or "", each["waiting"], moment(each["next_at"]))
        for each in now["routes"]
    ]
    return table(("route", "state", "why", "waiting", "next try"), rows, "None: everything goes.")


def _workers(now: dict[str, Any]) -> Html:
    rows = [
        (
            each["name"],
            each["host"],
            tag("span", "yes", class_="good") if each["healthy"] else tag("span", "NO", class_="bad"),
            f"{span(each['age_us'] / 1e6)} ago",
            each["version"],
        )
        for each in now["workers"]
    ]
    columns = ("worker", "host", "healthy", "looked for work", "rates")
    return table(columns, rows, "No worker is known, so nothing is sent: start notifier worker.")


def _throttled(told: dict[str, Any], now: datetime) -> list[Any]:
    rows = [
        (
            link("/user", each["user"], id=each["user"]),
            f"{each['waiting']:,}",
            ", ".join(f"{name} {n:,}" for name, n in each["categories"].items()),
            moment(when(each["next_at"]), now),
        )
        for each in told["users"]
    ]
    hint = (
        None
        if told["is_all"]
        else tag("p", "Too many wait to look at all: these are of some by chance.", class_="hint")
    )
    return [table(("user", "waiting", "of these", "looked at next"), rows, "No user waits."), hint]


def _minutes(told: dict[str, Any]) -> Html:
    rows = [
        (
            datetime.fromtimestamp(each["at"], tz=UTC).strftime("%H:%M"),
            each["accepted"],
            each["ended"].get("delivered", 0),
            sum(each["ended"].values()) - each["ended"].get("delivered", 0),
            each.get("retried", 0),
            _span(each["lateness"]["p99"]),
        )
        for each in reversed(told["minutes"])
    ]
    return table(("minute", "accepted", "delivered", "other ends", "retried", "late, p99"), rows, slim=True)


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span(seconds)
