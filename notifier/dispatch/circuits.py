"""What is held: how a worker tells what it has seen of a route, and how people read what is held now."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self, cast

from redis import Redis

from notifier.scripts.keys import redis_key, rq_key
from notifier.scripts.loader import Call, script
from notifier.store.exchange import Commands, Exchange, exchange
from notifier.units import clock_us, moment

Seen = Literal["down", "up", "next", "retry"]
Kind = Literal["unreachable", "fault", "failing", "full"]
Change = Literal["opened", "closed", "alone", ""]
FULL, BUSY = "|full", "|busy|"
BUSY_SHOWN_US = 2_000_000  # a route that nobody used for a while is busy for a moment until its limit has grown
# What a worker tells of itself in its hash rq:worker:<name>: how many it may have under way by each route, as JSON.
LIMITS = "push_limits"


def circuit(
    worker: str,
    route: str,
    seen: Seen,
    *,
    kind: Kind = "unreachable",
    reason: str = "",
    first_us: int = 0,
    max_us: int = 0,
    share: float = 1.0,
    clock: str = "",
) -> Call[Change]:
    """Tell what a worker has seen of a route; the reply tells what that changed, see *circuit*.

    With 'down': why, and after how long to probe, from first_us, by halves, to max_us; share: of these to wait.
    """
    args: list[str | bytes | int] = [clock, worker, route, seen]
    if seen == "down":
        args += [kind, reason, first_us, max_us, round(share * 1000)]
    return Call(script("circuit"), [], args, lambda reply: cast("Change", str(reply, "utf-8")))


@dataclass(frozen=True, slots=True)
class Held:
    """A route by which nothing goes now.

    state: 'open', its circuit is open; 'closing', it is up again, and those who waited are let go; 'full', its project
    has no room for more, by our own count, or because the provider said so, and then there is a reason; 'busy', as much
    goes by it as its provider bears, and more has waited for two
    seconds. kind and reason: of a circuit, why; 'fault' is ours to mend.
    since: when it began. next_at: when the next is let go, a probe or what there is room for. waiting: how many users
    and rests of notifications are parked; who comes behind them in a backlog is not counted. at_once: where it is busy,
    how many sends all workers together may have under way, as they have found out. shard: which it is held on, where
    there are several.
    """

    route: str
    state: Literal["open", "closing", "full", "busy"]
    next_at: datetime
    waiting: int
    kind: Kind | None = None
    reason: str = ""
    since: datetime | None = None
    at_once: int | None = None
    shard: str | None = None

    def seen_on(self, shard: str) -> Self:
        """The same, of a shard."""
        return replace(self, shard=shard)


def read_routes(redis: Redis) -> list[Held]:
    """All that is held now, in the order of the routes; empty when all is well. Raises RedisUnusableError."""
    return exchange(redis, find_routes())


def read_limits(redis: Redis) -> dict[str, int]:
    """How many sends all workers together may have under way, by route. Raises RedisUnusableError."""
    return exchange(redis, _find_limits())


def find_routes() -> Exchange[list[Held]]:
    """See `read_routes`."""
    found = yield from _find_holds()
    lanes = [held for held in found if held.state == "busy"]
    if not lanes:
        return found
    (now,) = yield Commands(lambda pipe: pipe.time())
    before = moment(clock_us(now) - BUSY_SHOWN_US)
    lanes = [held for held in lanes if held.next_at <= before]
    limits = yield from _find_limits()
    by_route: dict[str, Held] = {}
    for held in lanes:
        other = by_route.get(held.route, replace(held, waiting=0))
        since, waiting = min(other.next_at, held.next_at), other.waiting + held.waiting
        by_route[held.route] = replace(
            held, waiting=waiting, since=since, next_at=since, at_once=limits.get(held.route)
        )
    rest = [held for held in found if held.state != "busy"]
    return sorted([*rest, *by_route.values()], key=lambda held: held.route)


def _find_limits() -> Exchange[dict[str, int]]:
    """How many sends all workers together may have under way, by route."""
    (workers,) = yield Commands(lambda pipe: pipe.smembers(rq_key("workers")))
    told = yield Commands(lambda pipe: [pipe.hget(str(key, "utf-8"), LIMITS) for key in workers])
    limits: Counter[str] = Counter()
    for each in told:
        limits.update(json.loads(each) if each else {})
    return limits


def _find_holds() -> Exchange[list[Held]]:
    (names,) = yield Commands(lambda pipe: pipe.smembers(redis_key("routes")))
    ordered = sorted(str(name, "utf-8") for name in names)

    def ask(pipe: Any) -> None:
        for name in ordered:
            pipe.hgetall(redis_key("route", name))
            pipe.zcard(redis_key("parked", name))

    found = yield Commands(ask)
    return [_held(name, *found[2 * n : 2 * n + 2]) for n, name in enumerate(ordered) if found[2 * n]]


def _held(name: str, fields: dict[bytes, bytes], waiting: int) -> Held:
    held: dict[str, Any] = {str(key, "utf-8"): str(value, "utf-8") for key, value in fields.items()}
    since = moment(int(held["since"])) if "since" in held else None
    next_at = moment(int(held["until"]))
    route = name.partition(BUSY)[0].removesuffix(FULL)
    if held["state"] == "open" and held.get("kind") == "full":
        held["state"] = "full"
    return Held(route, held["state"], next_at, waiting, held.get("kind"), held.get("reason", ""), since)
