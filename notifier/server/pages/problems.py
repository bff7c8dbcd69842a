"""The page Problems: rejected, failed and expired notifications and dead tokens, by reason and one by one."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from notifier.server.html import Html, hint, moment, table, tag
from notifier.server.pages.layout import View, document, job_link, link

OUTCOMES: Final = ("", "rejected", "failed", "expired", "dead token")


def bad_page(told: dict[str, Any], view: View) -> str:
    now = told["at"]
    counts = [(f"{c['count']:,}", c["outcome"], c["reason"], c["route"], c["category"]) for c in told["counts"]]
    rows = [
        (
            moment(each["at"], now),
            each["outcome"],
            f"{each['reason']} ({each['token']})" if each["token"] else each["reason"],
            each["route"],
            link("/user", each["user"], id=each["user"]) if each["user"] else None,
            job_link(each["job_id"], user=each["user"]) if each["job_id"] else None,
        )
        for each in told["found"]
    ]
    return document(
        view,
        "Problems",
        tag("h1", "Problems"),
        _form(told),
        tag("h2", "By reason"),
        table(("how many", "what", "reason", "route", "category"), counts, "None is kept."),
        hint(f"and {told['other_counts']:,} for other reasons") if told["other_counts"] else None,
        tag("h2", "The newest"),
        table(("when", "what", "reason", "route", "user", "job"), rows, "None is kept."),
        _pages(told),
        None
        if told["is_all"]
        else hint("The newest 500 of each lane, of those kept longer there, and of dead tokens, were read."),
    )


def _form(told: dict[str, Any]) -> Html:
    options = [tag("option", each or "all", value=each, selected=each == told["outcome"] or None) for each in OUTCOMES]
    return tag(
        "form",
        tag("label", "Part of a job id or a user", for_="part"),
        tag("input", type="search", name="part", id="part", value=told["part"], autocomplete="off"),
        tag("label", "What", for_="outcome"),
        tag("select", options, name="outcome", id="outcome"),
        tag("button", "Show", type="submit"),
        method="get",
        action="/problems",
        class_="line",
    )


def _pages(told: dict[str, Any]) -> Html:
    def to(page: int, label: str) -> Html:
        query = urlencode({"part": told["part"], "outcome": told["outcome"], "page": page})
        return tag("a", label, href=f"/problems?{query}")

    page = told["page"]
    return tag("p", [to(page - 1, "Newer"), " "] if page else None, to(page + 1, "Older") if told["more"] else None)
