"""The tables at the end of the page Now: lanes, workers, minutes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from notifier.server.html import Html, at_most, moment, span, table, tag


def details(told: dict[str, Any]) -> Html:
    now = told["now"]
    body = [
        tag("h2", "Lanes"),
        _lanes(now),
        tag("h2", "Each worker"),
        _workers(now, told["at"]),
        tag("h2", "Minutes"),
        _minutes(told),
    ]
    return tag("div", body, id="details")


def _lanes(now: dict[str, Any]) -> Html:
    rows = [
        (name, f"{each['queued']:,}", span(each["oldest_queued_s"]) if each["queued"] else "", f"{each['waiting']:,}")
        for name, each in now["lanes"].items()
    ]
    return table(("lane", "queued", "oldest queued", "scheduled"), rows, slim=True)


def _workers(now: dict[str, Any], at: datetime) -> Html:
    rows = [
        (
            each["name"],
            each["host"],
            tag("span", "yes", class_="good") if each["healthy"] else tag("span", "NO", class_="bad"),
            f"{span(each['age_us'] / 1e6)} ago",
            f"{each['in_flight']:,}",
            moment(each["since"], at),
            each["version"],
            each["rates"],
        )
        for each in now["workers"]
    ]
    columns = ("worker", "host", "healthy", "looked for work", "being sent", "since", "version", "rates")
    return table(columns, rows, "No worker is known, so nothing is sent: start notifier worker.")


def _minutes(told: dict[str, Any]) -> Html:
    rows = []
    for each in reversed(told["minutes"]):
        delivered, cancelled = each["ended"].get("delivered", 0), each["ended"].get("cancelled", 0)
        others = sum(each["ended"].values()) - delivered - cancelled
        numbers = [f"{n:,}" for n in (each["accepted"], delivered, cancelled, others, each.get("retried", 0))]
        at = datetime.fromtimestamp(each["at"], tz=UTC).strftime("%H:%M")
        rows.append((at, *numbers, at_most(each["lateness"]["p99"])))
    columns = ("minute", "accepted", "delivered", "cancelled", "other ends", "retried", "late, p99")
    return table(columns, rows, slim=True)
