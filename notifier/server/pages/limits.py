"""The page Limits: the counted usage of a program's own limiters, by namespace, by key and over the last hour."""

from __future__ import annotations

from typing import Any

from notifier.operations.limit_view import RANKS
from notifier.server.html import Html, column, facts, hint, moment, table, tag
from notifier.server.pages.layout import View, document, link

WORDS = {"total": "used most", "rate": "used most in the last hour", "held": "held most", "last_used": "used last"}


def limits_page(told: dict[str, Any], view: View) -> str:
    return _namespace_page(told, view) if "namespace" in told else _namespaces_page(told, view)


def _namespaces_page(told: dict[str, Any], view: View) -> str:
    now = told["at"]
    rows = [
        (link("/limits", each["namespace"], id=each["namespace"]), each["keys"], moment(each["last_used"], now))
        for each in told["namespaces"]
    ]
    return document(
        view,
        "Limits",
        tag("h1", "Limits"),
        table(
            ("namespace", "keys", "used"),
            rows,
            "No limiter of a program counts its usage: give one usage_keep, such as '30d'.",
        ),
        hint("What notifier.limiter limits in your programs. Users' notifications are not among it."),
        renew=True,
    )


def _namespace_page(told: dict[str, Any], view: View) -> str:
    name, by, now, key = told["namespace"], told["by"], told["at"], told["key"]
    ways = [
        tag("strong", WORDS[rank]) if rank == by else link("/limits", WORDS[rank], id=name, by=rank) for rank in RANKS
    ]
    rows = [
        (
            link("/limits", each["key"], id=name, by=by, key=each["key"]),
            each["total"],
            f"{each['rate'] * 3600:,.0f}",
            each["held"],
            moment(each["last_used"], now),
        )
        for each in told["top"]
    ]
    return document(
        view,
        f"Limits of {name}",
        tag("h1", f"Limits of {name}"),
        tag("p", [[way, " · "] for way in ways[:-1]], ways[-1]),
        table(["key", "total", "in the last hour", "held", "used"], rows, "Nothing is known here."),
        [] if key is None else _one(key, name, by, now),
        tag("h2", "The last hour" if key is None else f"The last hour of {key['key']}"),
        table(["from", "uses"], _series(told["series"]), slim=True),
        tag("p", link("/limits", "All namespaces")),
        renew=True,
    )


def _one(key: dict[str, Any], name: str, by: str, now: Any) -> list[Html]:
    rates = key["per_second"]
    return [
        tag("h2", key["key"]),
        facts(
            [
                ("total", key["total"]),
                ("held", key["held"]),
                ("first used", moment(key["first_used"], now)),
                ("last used", moment(key["last_used"], now)),
                ("a second", f"{rates['1m']:.3g} over a minute, {rates['1h']:.3g} an hour, {rates['1d']:.3g} a day"),
            ]
        ),
        tag("p", link("/limits", "The series of all keys", id=name, by=by)),
    ]


def _series(points: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    most = max((point["count"] for point in points), default=0)
    return [(moment(point["at"]), column(point["count"], most)) for point in points]
