"""The page User: the rules and their use, the history, and the waiting notifications with reasons and times."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from notifier.operations.problems import why_of
from notifier.rules.preferences import FOREVER
from notifier.server.html import Html, bar, facts, hint, moment, table, tag, text
from notifier.server.pages.history import history_table
from notifier.server.pages.layout import View, act, document, job_link, link

FIRST: Final = 20  # waiting notifications; a link shows the others


def user_page(told: dict[str, Any], view: View) -> str:
    shown, kept = len(told["history"]), told["history_in_all"]
    body = [
        tag("h1", "User ", tag("span", told["user"], class_="id")),
        facts([("Time zone", told["zone"])]),
        tag("h2", f"Waiting ({told['waiting_in_all']:,})"),
        _waiting(told, view),
        act("/user/cancel", "Cancel all that waits", user=told["user"])
        if view.may_act and (told["waiting_in_all"] or told["outside"])
        else None,
        tag("h2", f"History ({kept})" if shown == kept else f"History (the newest {shown} of {kept})"),
        history_table(told),
        tag("h2", "When the next may go"),
        _next(told),
        tag("h2", "Rules of the user, from ", tag("code", told["user_rules"])),
        _uses([use for use in told["uses"] if use["scope"] == "user"], told["at"]),
        tag("h2", "Rules of ", told["category"], ", from ", tag("code", told["category_rules"])),
        _uses([use for use in told["uses"] if use["scope"] == "category"], told["at"]),
        tag("p", "It has bypass: it is counted, but never held back.") if told["bypass"] else None,
        tag("h2", "Other categories"),
        _categories(told),
    ]
    return document(view, f"User {told['user']}", body)


def _waiting(told: dict[str, Any], view: View) -> Any:
    standing = told["line"] if view.is_long else told["line"][:FIRST]
    columns = ("category", "job", "why it waits", "expected", "expires", "")
    rows = [*_rows(standing, told, view)]
    return [table(columns, rows, "Nothing waits in the backlogs of this user."), *_what_is_left(told, standing)]


def _rows(standing: list[dict[str, Any]], told: dict[str, Any], view: View) -> Iterator[tuple[Any, ...]]:
    now, user = told["at"], told["user"]
    for each in standing:
        times = moment(each["expected_at"], now), moment(each["expires_at"], now)
        job_id = each["job_id"]
        yield each["category"], job_link(job_id, user=user), why(each, now), *times, _cancel(job_id, user, view)


def _what_is_left(told: dict[str, Any], standing: list[dict[str, Any]]) -> Iterator[Html]:
    if told["waiting_in_all"] > len(standing):
        yield hint(f"Shown are the first {len(standing)} of {told['waiting_in_all']:,} in backlogs.")
    if len(told["line"]) > len(standing):
        more = link("/user", "Show more of them", id=told["user"], category=told["category"], long="1")
        yield tag("p", more)
    if told["outside"]:
        yield hint(f"In no backlog, of all users: {told['outside']}.")


def why(each: dict[str, Any], now: datetime) -> str:
    """Say why a notification in a backlog waits."""
    at = each["expected_at"]
    told = [each["not_before"], each["held_by"] and f"the rule {each['held_by']}"]
    if any(told):
        return ", ".join(filter(None, told))
    if at is None:
        return "more than 1,000 wait before it"
    return "nothing: it is due" if at <= now else "what waits before it"


def _cancel(job_id: str, user: str, view: View) -> Html | None:
    if not view.may_act:
        return None
    return act("/job/cancel", "Cancel", mild=True, says=f"Cancel {job_id}", id=job_id, user=user)


def _stopped(told: dict[str, Any]) -> Any:
    """The suspension or pause that holds the user, whatever the rules admit."""
    if told["suspended"]:
        return "rq suspend: no worker looks for work until rq resume"
    if told["paused"] is None:
        return ""
    until = told["paused"]["next_at"]
    return text([f"{told['paused']['why']}, until ", moment(until) or "it is resumed"])


def _next(told: dict[str, Any]) -> Html:
    now = told["at"]
    at = told["next_at"]
    stopped = _stopped(told)
    if stopped:
        return facts([("Category", f"{told['category']}, in the lane {told['lane']}"), ("Held by", stopped)])
    shown = "now" if at is None else "not before that ends" if at >= FOREVER else moment(at, now)
    return facts(
        [
            ("Category", f"{told['category']}, in the lane {told['lane']}"),
            ("Held by", "no rule" if at is None else told["decided_by"]),
            ("May go by the rules", shown),
            ("Routes", [[_not_working(held, now), tag("br")] for held in told["routes"]] or None),
        ]
    )


def _not_working(held: dict[str, Any], now: datetime) -> Any:
    said = f" {held['state']}: {why_of(held)}"
    if held["next_at"] is None or held["kind"] == "recovering":
        return [link("/routes", held["route"]), said]
    what = "until" if held["kind"] == "paused" else "next probe" if held["state"] == "stopped" else "room"
    return [link("/routes", held["route"]), f"{said}; {what} ", moment(held["next_at"], now)]


def _uses(uses: list[dict[str, Any]], now: datetime) -> Html:
    rows = [
        (
            tag("code", use["rule"], class_="rule"),
            None if use["limit"] is None else bar(use["used"], use["limit"]),
            moment(use["free_at"], now) or "now",
            tag("code", use["at"]) if use["at"] else None,
        )
        for use in uses
    ]
    return table(("rule", "used", "admits the next", "from"), rows, "None.")


def _categories(told: dict[str, Any]) -> Html:
    others = [name for name in told["categories"] if name != told["category"]]
    if not others:
        return tag("p", "There are none.", class_="none")
    return tag("p", [link("/user", name, id=told["user"], category=name) for name in others[:50]], class_="tabs")
