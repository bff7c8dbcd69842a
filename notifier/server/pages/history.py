"""Show a user's history: for each notification, a coloured bar of its delays and the same in words."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from notifier.server.html import Html, moment, table, tag
from notifier.server.pages.layout import job_link
from notifier.texts import seconds_text

WIDTH: Final = 1000  # of a bar, in its own units
THINNEST: Final = 4  # so that a short part can be seen


def history_table(told: dict[str, Any]) -> Any:
    records, now = told["history"], told["at"]
    rows = [
        (
            moment(each["accepted_at"] or each["ended_at"], now),
            each["category"],
            job_link(each["job_id"], user=told["user"]),
            each["outcome"],
            held_back(each),
            "; ".join(each["answered"]),
        )
        for each in records
    ]
    columns = ("accepted", "category", "job", "outcome", "held back by", "answered")
    return [
        table(columns, rows, "Nothing has ended, or no history is kept."),
        legend(records) if rows else None,
    ]


def held_back(record: dict[str, Any]) -> Any:
    """A bar of a notification's delays, each part as wide as its time, and the same in words."""
    parts = [part for part in record["delays"] if part["why"] != "sending"]
    if not record["held"]:
        return "nothing"
    words = [
        [tag("br") if n else None, f"{seconds_text(s)} {what}"] for n, (what, s) in enumerate(record["held"].items())
    ]
    return [_bar(parts), tag("div", words, class_="words")]


def legend(records: list[dict[str, Any]]) -> Html:
    whys = dict.fromkeys(part["why"] for each in records for part in each["delays"] if part["why"] != "sending")
    return tag("p", [_key(why) for why in whys], class_="hint legend")


def _key(why: str) -> Html:
    swatch = tag("svg", tag("rect", class_=f"why-{why}", width=10, height=10), class_="swatch", viewBox="0 0 10 10")
    return tag("span", swatch, why.replace("_", " "))


def _bar(parts: list[dict[str, Any]]) -> Html:
    total, at, drawn = sum(part["seconds"] for part in parts) or 1.0, 0, []
    for part in parts:
        width = max(THINNEST, round(WIDTH * part["seconds"] / total))
        shown = f"{seconds_text(part['seconds'])} {part['what']}"
        drawn.append(tag("rect", tag("title", shown), class_=f"why-{part['why']}", x=at, width=width, height=10))
        at += width
    return tag("svg", drawn, class_="bar held", viewBox=f"0 0 {at} 10", preserveAspectRatio="none", aria_hidden="true")


def record_facts(record: dict[str, Any] | None, now: datetime) -> list[tuple[str, Any]]:
    if record is None:
        return []
    return [
        ("Held back", held_back(record)),
        ("Handed over", [[moment(at, now), tag("br")] for at in record["handed_at"]] or None),
        ("Answered", "; ".join(record["answered"])),
        ("Ended", moment(record["ended_at"], now) if record["outcome"] not in {"", "delivered"} else None),
        ("Settled by", record["worker"]),
        ("Rates", record["rates"]),
    ]
