"""The pages Pause and Log, and the page that asks before many notifications are cancelled."""

from __future__ import annotations

from typing import Any

from notifier.server.html import Html, moment, table, tag
from notifier.server.pages.layout import View, act, document, link, log_table
from notifier.units import counted

EXAMPLES = "all, category:marketing, user:42, lane:bulk or route:apns"


def pauses_page(told: dict[str, Any], view: View) -> str:
    now = told["at"]
    rows = [
        (
            each["what"],
            each["who"],
            each["reason"],
            moment(each["since"], now),
            moment(each["next_at"], now) or "it is resumed",
            act("/resume", "Resume", says=f"Resume {each['what']}", what=each["what"]) if view.may_act else None,
        )
        for each in told["pauses"]
    ]
    return document(
        view,
        "Pause",
        tag("h1", "Pause"),
        table(("paused", "by", "why", "since", "until", ""), rows, "Nothing is paused."),
        _form(told) if view.may_act else None,
    )


def _form(told: dict[str, Any]) -> Html:
    def field(name: str, label: str, value: str = "", hint: str = "") -> list[Html]:
        given = tag("input", type="text", name=name, id=name, value=value, autocomplete="off", required=name == "what")
        return [tag("label", label, for_=name), tag("div", given, tag("span", hint, class_="hint"))]

    return tag(
        "form",
        tag("h2", "Stop sending"),
        tag("p", "What is paused waits in its place, and expires when it would. What was handed over is not stopped."),
        tag(
            "div",
            field("what", "What", told["what"], EXAMPLES),
            field("for", "For how long", "", "such as 1h; empty: until it is resumed"),
            field("reason", "Why", "", "shown to everybody who asks"),
            class_="fields",
        ),
        tag("button", "Pause", type="submit"),
        method="post",
        action="/pause",
    )


def sure_page(told: dict[str, Any], view: View) -> str:
    """Ask whether to cancel all waiting notifications of a user."""
    user = tag("span", told["user"], class_="id")
    some = counted(told["waiting"], "notification")
    return document(
        view,
        "Cancel",
        tag("h1", "Cancel all that waits?"),
        tag("p", f"{some} in the backlogs of ", user, ", and all that is queued or has a time of its own."),
        tag("p", "It will not be sent. Nobody can take this back."),
        act("/user/cancel", "Cancel all that waits", user=told["user"], sure="1"),
        tag("p", link("/user", "No, go back", id=told["user"])),
    )


def log_page(told: dict[str, Any], view: View) -> str:
    return document(
        view,
        "Log",
        tag("h1", "Log"),
        tag("p", "Who changed what, by the command line and by these pages. The last 50; Redis keeps about 10,000."),
        log_table(told["actions"], told["at"]),
    )
