"""Every configured route as it is now: its circuit, how much goes by it at once, and its project's use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from notifier.notification.notification import route
from notifier.queue.circuits import OVERALL, Held, find_limits, find_routes, worst
from notifier.queue.health import find_workers
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
NOT_WORKING: Final = ("kind", "why", "whose", "reason", "who", "since", "next_at", "waiting")  # None where it works


@dataclass(frozen=True, slots=True)
class RouteNow:
    """A route. held: why it is not working; None where it is. is_used: whether a worker looks for what goes by it.

    at_once: how many sends all workers together may have under way, as they have found out; None where none has told.
    used, limit: messages of its project in the last interval, and how many there may be; None where there is no limit.
    A category with `overall` stands here too, as `overall:<category>`.
    """

    route: str
    held: Held | None
    at_once: int | None
    used: int | None = None
    limit: str | None = None
    is_used: bool = True

    @property
    def state(self) -> str:
        """In one word: 'working', 'slow' or 'stopped'; 'unknown' where no worker works."""
        if self.held is not None:
            return self.held.state
        return "working" if self.is_used else "unknown"

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        held = dict.fromkeys(NOT_WORKING) if self.held is None else self.held.as_json()
        held |= {"why": NO_WORKER} if self.state == "unknown" else {}
        own = {"route": self.route, "state": self.state, "at_once": self.at_once}
        return held | own | {"used": self.used, "limit": self.limit}


def view_routes(redis: Any, settings: Settings) -> list[RouteNow]:
    """All routes of the configuration, and what else is held. Raises RedisUnusableError where no partition answers."""
    return worst_of(list(ask_all(Partitions.around(redis), partial(_find_views, settings)).all))


def _find_views(settings: Settings) -> Exchange[list[RouteNow]]:
    paces = {OVERALL + name: of.overall for name, of in settings.categories.items() if of.overall is not None}
    names, projects = [*routes_of(settings), *paces], limited_routes(settings) | paces
    held = worst((yield from find_routes()))
    limits, used = (yield from find_limits()), (yield from find_uses(projects))
    every = [*names, *(name for name in sorted({*held, *limits}) if name not in names)]
    texts = {name: str(limited) for name, limited in projects.items()}
    is_used = any(worker.works() for worker in (yield from find_workers()))
    return [
        RouteNow(name, held.get(name), limits.get(name), used.get(name), texts.get(name), is_used) for name in every
    ]


def worst_of(views: Sequence[Sequence[RouteNow]]) -> list[RouteNow]:
    """The routes as they are in all partitions together: each in its worst state, with all that waits and goes."""
    routes: dict[str, list[RouteNow]] = {}
    for now in chain.from_iterable(views):
        routes.setdefault(now.route, []).append(now)
    held = worst(now.held for some in routes.values() for now in some if now.held is not None)
    return [
        RouteNow(
            route,
            held.get(route),
            _sum(now.at_once for now in some),
            _sum(now.used for now in some),
            some[0].limit,
            any(now.is_used for now in some),
        )
        for route, some in routes.items()
    ]


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [n for n in numbers if n is not None]
    return sum(known) if known else None


def limited_routes(settings: Settings) -> dict[str, Window]:
    """The routes whose project has a limit, and the limit."""
    limits = settings.providers.limits()
    found = {name: limits.get(name.partition("/")[0], NO_LIMITS).project for name in routes_of(settings)}
    return {name: project for name, project in found.items() if project is not None}


def routes_of(settings: Settings) -> list[str]:
    """The routes of the configuration, by which something can be sent."""
    return [
        route(platform, app)
        for platform, section in settings.providers.platforms().items()
        for app in (None, *section.apps)
        if section.why_not(app) is None
    ]


def find_uses(projects: Mapping[str, Window]) -> Exchange[dict[str, int]]:
    """Messages of projects that count now, as in limits.lua: a bucket until it has left the interval as a whole.

    Of a category with an overall pace those of its last interval.
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
