"""The page Routes: circuits with their reasons, how much goes at once, projects' use, what was answered lately."""

from __future__ import annotations

from typing import Any

from notifier.server.html import Html, bar, moment, span, table, tag
from notifier.server.pages.layout import View, dead_shards, document

MEANS = {
    "open": "closed: nothing goes",
    "closing": "opening again, one by one",
    "full": "full: its project has no room",
    "busy": "as much as its provider bears",
}


def routes_page(told: dict[str, Any], view: View) -> str:
    """The page of all routes."""
    now, is_sharded = told["at"], any(each["shard"] for each in told["routes"])
    is_held = any(each["held"] for each in told["routes"])
    rows = [
        (
            each["route"],
            *([each["shard"]] if is_sharded else []),
            _state(each),
            *(_held(each["held"], now) if is_held else ()),
            each["at_once"],
            _project(each),
            each["delivered"],
            each["others"],
            None if each["p99"] is None else span(each["p99"]),
        )
        for each in told["routes"]
    ]
    columns = [
        "route",
        *(["shard"] if is_sharded else []),
        "state",
        *(("why", "since", "next try", "users waiting") if is_held else ()),
        *("at once", "project", "delivered", "other ends", "answers, p99"),
    ]
    return document(
        view,
        "Routes",
        tag("h1", "Routes"),
        dead_shards(told),
        table(columns, rows, "The configuration names no platform: nothing can be sent."),
        tag(
            "p",
            "At once: how many sends all workers together may have under way, as they have found out. "
            "Delivered, other ends and answers are those of the last ten minutes, of all shards.",
            class_="hint",
        ),
        renew=True,
    )


def _state(each: dict[str, Any]) -> Html:
    if each["held"] is None:
        return tag("span", "everything goes", class_="good")
    state = each["held"]["state"]
    return tag("span", MEANS.get(state, state), class_=None if state in {"busy", "closing"} else "bad")


def _held(held: dict[str, Any] | None, now: Any) -> tuple[Any, ...]:
    if held is None:
        return None, None, None, None
    return _why(held), moment(held["since"], now), moment(held["next_at"], now), held["waiting"]


def _why(held: dict[str, Any]) -> str:
    ours = " (ours to mend)" if held["kind"] == "fault" else ""
    return (held["reason"] or held["kind"] or "") + ours


def _project(each: dict[str, Any]) -> Any:
    if each["used"] is None:
        return None
    limit = int(each["limit"].partition("/")[0])
    return [bar(each["used"], limit), f" in {each['limit'].partition('/')[2]}"]
