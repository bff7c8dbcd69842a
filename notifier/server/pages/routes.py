"""The page Routes: circuits with their reasons, sends at once, use of projects' limits, recent results."""

from __future__ import annotations

from typing import Any

from notifier.operations.problems import why_of
from notifier.server.html import Html, at_most, bar, hint, moment, table, tag
from notifier.server.pages.layout import View, document


def routes_page(told: dict[str, Any], view: View) -> str:
    now = told["at"]
    is_held = any(each["why"] for each in told["routes"])
    rows = [
        (
            each["route"],
            _state(each),
            *(_held(each, now) if is_held else ()),
            each["at_once"],
            _project(each),
            each["delivered"],
            each["others"],
            at_most(each["p99"]),
        )
        for each in told["routes"]
    ]
    columns = [
        "route",
        "state",
        *(("why", "since", "next probe", "users waiting") if is_held else ()),
        *("at once", "project", "delivered", "other ends", "answers, p99"),
    ]
    return document(
        view,
        "Routes",
        tag("h1", "Routes"),
        table(columns, rows, "The configuration names no platform: nothing can be sent."),
        hint(
            "At once: how many sends all workers together may have under way, as they have found out. "
            "Delivered, other ends and answers are those of the last ten minutes."
        ),
        renew=True,
    )


def _state(each: dict[str, Any]) -> Html:
    return tag("span", each["state"], class_={"working": "good", "stopped": "bad"}.get(each["state"]))


def _held(held: dict[str, Any], now: Any) -> tuple[Any, ...]:
    if held["kind"] is None:
        return held["why"], None, None, None
    probe = held["next_at"] if held["state"] == "stopped" else None
    return why_of(held), moment(held["since"], now), moment(probe, now), held["waiting"]


def _project(each: dict[str, Any]) -> Any:
    if each["used"] is None:
        return None
    limit = int(each["limit"].partition("/")[0])
    return [bar(each["used"], limit), f" in {each['limit'].partition('/')[2]}"]
