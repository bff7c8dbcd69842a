"""Read for people the usage of programs' own limits: namespaces that count it, their keys, and series."""

from __future__ import annotations

from typing import Any, Final

from redis import Redis

from notifier.limiter import Limiter
from notifier.limiter.requests import By
from notifier.scripts.keys import in_force
from notifier.scripts.loader import Call, run, script
from notifier.store.connection import ask
from notifier.units import from_bytes, moment

MAX_KEYS: Final = 20
RANKS: Final[tuple[By, ...]] = ("total", "rate", "held", "last_used")


def view_namespaces(redis: Redis) -> list[dict[str, Any]]:
    """Return all namespaces, the last used first."""
    call: Call[list[Any]] = Call(script("limit_usage"), [], ["", "", "", "namespaces"], lambda reply: reply[1:])
    return [
        {"namespace": from_bytes(name), "keys": keys, "last_used": moment(int(at))}
        for name, keys, at in ask(lambda: run(redis, call))
    ]


def view_namespace(redis: Redis, namespace: str, by: By, key: str = "") -> dict[str, Any] | None:
    """Return a namespace: its first keys in the order `by`, and a series of the last hour, of `key` if one is given.

    None if the namespace has no usage. Raises ValueError for a name or a key that no limiter accepts.
    """
    known = [each for each in view_namespaces(redis) if each["namespace"] == namespace]
    if not known:
        return None
    limiter = Limiter(redis, namespace=namespace, prefix=in_force().ours, usage_keep="1d")
    ranked = ask(lambda: limiter.top(MAX_KEYS, by=by))
    usage = ask(lambda: limiter.usage(key)) if key else None
    series = ask(lambda: limiter.series(key or None, last="1h", step="5m"))
    return {
        **known[0],
        "by": by,
        "top": [_fields(each, "key", "total", "held", "rate", "last_used") for each in ranked],
        "key": usage and _fields(usage, "key", "total", "held", "first_used", "last_used", "per_second"),
        "series": [_fields(point, "at", "count") for point in series],
    }


def _fields(of: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}
