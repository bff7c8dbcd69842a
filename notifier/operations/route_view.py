"""Every configured route as it is now: its circuit, how much goes by it at once, and its project's use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis

from notifier.dispatch.circuits import Held, read_limits, read_routes
from notifier.notification.notification import route
from notifier.rules.policy import NO_LIMITS, Window
from notifier.scripts.keys import redis_key
from notifier.scripts.rule_table import bucket_us
from notifier.settings import Settings
from notifier.store.connection import redis_answers, time_us


@dataclass(frozen=True, slots=True)
class RouteNow:
    """A route on one Redis. held: what holds it up; None where all goes.

    at_once: how many sends all workers together may have under way, as they have found out; None where none has told.
    used, limit: messages of its project in the last interval, and how many there may be; None where there is no limit.
    """

    route: str
    shard: str
    held: Held | None
    at_once: int | None
    used: int | None = None
    limit: str | None = None

    @property
    def state(self) -> str:
        """In one word: 'ok', or how it is held."""
        return "ok" if self.held is None else self.held.state


def view_routes(clients: Mapping[str, Redis], settings: Settings) -> list[RouteNow]:
    """All routes of the configuration, and what else is held, on each shard. Raises RedisUnusableError."""
    names, projects = _routes(settings), limited_routes(settings)
    found = []
    for shard, redis in clients.items():
        with redis_answers():
            held = {each.route: each for each in read_routes(redis)}
            limits = read_limits(redis)
            for name in [*names, *(name for name in sorted({*held, *limits}) if name not in names)]:
                limited = projects.get(name)
                used = None if limited is None else project_use(redis, name, limited)
                text = None if limited is None else str(limited)
                found.append(RouteNow(name, shard, held.get(name), limits.get(name), used, text))
    return found


def limited_routes(settings: Settings) -> dict[str, Window]:
    """The routes whose project has a limit, and the limit."""
    limits = settings.providers.limits()
    found = {name: limits.get(name.partition("/")[0], NO_LIMITS).project for name in _routes(settings)}
    return {name: project for name, project in found.items() if project is not None}


def _routes(settings: Settings) -> list[str]:
    return [
        route(platform, app)
        for platform, section in settings.providers.platforms().items()
        for app in (None, *section.apps)
        if section.why_not(app) is None
    ]


def project_use(redis: Any, name: str, limited: Window) -> int:
    """Messages of a project that count now, as in limits.lua: a bucket until it has left the interval as a whole."""
    oldest = time_us(redis) - limited.interval_us - bucket_us(limited.interval_us)
    counts = redis.hgetall(redis_key("project", name))
    return sum(int(n) for begins, n in counts.items() if int(begins) > oldest)
