"""The present state of every configured route: its circuit, its concurrent sends, and its project's use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from notifier.notification.notification import route
from notifier.operations.stats import Now, read_now
from notifier.queue.circuits import OVERALL, Held, find_limits, worst
from notifier.rules.category import NO_LIMITS
from notifier.rules.policy import Window
from notifier.scripts.keys import redis_key
from notifier.scripts.rule_table import bucket_us
from notifier.settings import Settings
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.pipelining import ask_all
from notifier.units import clock_us

NO_WORKER: Final = "no worker works"
NOT_WORKING: Final = ("kind", "why", "whose", "reason", "who", "since", "next_at", "waiting")  # None if the route works


def view_routes(redis: Any, settings: Settings, now: Now | None = None) -> list[dict[str, Any]]:
    """Return all configured routes, and other held ones, as plain data. now: if the caller has just read it.

    state: 'working', 'slow' or 'stopped'; 'unknown' if no worker works. at_once: how many sends all workers together
    may have in flight, as they have learnt; None if none has published it. used, limit: the messages of the route's
    project in the last interval, and their limit; None without a limit. Other fields: see `Held`. The list also has
    categories with `overall`, as `overall:<category>`. Raises RedisUnusableError if no partition answers.
    """
    now = now or read_now(redis)
    paces = {OVERALL + name: of.overall for name, of in settings.categories.items() if of.overall is not None}
    limited = limited_routes(settings) | paces
    answers = list(ask_all(Partitions.around(redis), partial(_find_uses, limited)).all)
    at_once, used = _sum(at_once for at_once, _ in answers), _sum(used for _, used in answers)
    held, limits = worst(now.routes), {name: str(window) for name, window in limited.items()}
    names = dict.fromkeys([*routes_of(settings), *paces, *sorted({*held, *at_once})])
    return [
        _state(held.get(name), works=now.works)
        | {"route": name, "at_once": at_once.get(name), "used": used.get(name), "limit": limits.get(name)}
        for name in names
    ]


def _state(held: Held | None, *, works: bool) -> dict[str, Any]:
    if held is not None:
        return held.as_json()
    unknown = {} if works else {"why": NO_WORKER}
    return dict.fromkeys(NOT_WORKING) | {"state": "working" if works else "unknown"} | unknown


def _find_uses(limited: Mapping[str, Window]) -> Exchange[tuple[Mapping[str, int], Mapping[str, int]]]:
    return (yield from find_limits()), (yield from find_uses(limited))


def _sum(of_partitions: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for each in of_partitions:
        found.update(each)
    return found


def limited_routes(settings: Settings) -> dict[str, Window]:
    limits = settings.providers.limits()
    found = {name: limits.get(name.partition("/")[0], NO_LIMITS).project for name in routes_of(settings)}
    return {name: project for name, project in found.items() if project is not None}


def routes_of(settings: Settings) -> list[str]:
    """Return the configured routes that can send."""
    return [
        route(platform, app)
        for platform, section in settings.providers.platforms().items()
        for app in (None, *section.apps)
        if section.why_not(app) is None
    ]


def find_uses(projects: Mapping[str, Window]) -> Exchange[dict[str, int]]:
    """Count each project's messages as limits.lua does: a bucket counts until all of it has left the interval.

    For a category with an overall pace, count the sends of its last interval.
    """
    (now,) = yield Commands(lambda pipe: pipe.time())
    since = {name: clock_us(now) - limited.interval_us for name, limited in projects.items()}

    def ask(pipe: Any) -> None:
        for name, since_us in since.items():
            if name.startswith(OVERALL):
                pipe.zcount(redis_key("overall", name.removeprefix(OVERALL)), f"({since_us}", "+inf")
            else:
                pipe.hgetall(redis_key("project", name))

    used = {}
    for name, found in zip(projects, (yield Commands(ask)), strict=True):
        oldest = since[name] - bucket_us(projects[name].interval_us)
        is_count = name.startswith(OVERALL)
        used[name] = found if is_count else sum(int(n) for begins, n in found.items() if int(begins) > oldest)
    return used
