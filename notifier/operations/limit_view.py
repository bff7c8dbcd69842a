"""Read a program's own limits for people: the namespaces that count usage, their keys, and series."""

from __future__ import annotations

from typing import Any, Final

from redis import Redis

from notifier.limiter import Limiter, RankedKey
from notifier.limiter.calls import namespaces_call
from notifier.limiter.requests import NAMESPACE, By
from notifier.scripts.loader import run
from notifier.store.connection import ask
from notifier.units import moment

MAX_KEYS: Final = 20
RANKS: Final[tuple[By, ...]] = ("total", "rate", "held", "last_used")


def view_namespaces(redis: Redis) -> list[dict[str, Any]]:
    """All namespaces, the one that was used last first."""
    found = [
        {"namespace": name, "keys": keys, "last_used": moment(at)}
        for name, keys, at in ask(lambda: run(redis, namespaces_call()))
    ]
    return sorted(found, key=lambda each: each["last_used"], reverse=True)


def view_namespace(redis: Redis, namespace: str, by: By, key: str = "") -> dict[str, Any] | None:
    """One namespace: its keys in this order, and a series of the last hour, of one key where one is named.

    None where nothing is known of it.
    """
    known = [each for each in view_namespaces(redis) if each["namespace"] == namespace]
    if not known or NAMESPACE.fullmatch(namespace) is None:
        return None
    limiter = Limiter(redis, namespace=namespace, usage_keep="1d")
    ranked = ask(lambda: limiter.top(MAX_KEYS, by=by))
    usage = ask(lambda: limiter.usage(key)) if key else None
    return {
        **known[0],
        "by": by,
        "top": [_ranked(each) for each in ranked],
        "key": None
        if usage is None
        else {
            "key": key,
            "total": usage.total,
            "held": usage.held,
            "first_used": usage.first_used,
            "last_used": usage.last_used,
            "per_second": dict(usage.per_second),
        },
        "series": [
            {"at": point.at, "count": point.count}
            for point in ask(lambda: limiter.series(key or None, last="1h", step="5m"))
        ],
    }


def _ranked(each: RankedKey) -> dict[str, Any]:
    return {name: getattr(each, name) for name in ("key", "total", "held", "rate", "last_used")}
