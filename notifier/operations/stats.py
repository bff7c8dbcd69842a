"""What happens now and what happened in the last minutes, read for people and for metrics. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from notifier.dispatch.circuits import Held, read_routes
from notifier.dispatch.health import Alive, read_workers
from notifier.dispatch.minutes import UNENDED, Histogram, Numbers, merged, minute_now, read_fields
from notifier.rules.policy import LANES
from notifier.scripts.keys import redis_key, rq_key
from notifier.store.connection import redis_answers
from notifier.units import clock_us


@dataclass(frozen=True, slots=True)
class LaneNow:
    """A lane now. queued: accepted, and not looked at yet. waiting: in the users' backlogs, or until a time of their
    own.

    due_users: users whose wake-up has passed. oldest_due_s: for how long the first of these, or 0.
    """

    queued: int
    waiting: int
    due_users: int
    oldest_due_s: float


@dataclass(frozen=True, slots=True)
class Now:
    """One Redis now. totals: by outcome, since ever. memory: bytes used, and its maxmemory or 0."""

    lanes: dict[str, LaneNow]
    later: int
    in_flight: int
    routes: list[Held]
    workers: list[Alive]
    totals: dict[str, int]
    memory: tuple[int, int]
    minute: int

    @property
    def oldest_due_s(self) -> float:
        """For how long the first of the due users is due."""
        return max((lane.oldest_due_s for lane in self.lanes.values()), default=0.0)


@dataclass(slots=True)
class Stats:
    """What the last minutes brought, and what is now, of each shard; the one Redis stands under ''.

    minutes: the numbers by minute, the newest last; together: all of them in one.
    """

    now: dict[str, Now]
    minutes: dict[int, Numbers] = field(default_factory=dict)
    together: Numbers = field(default_factory=Numbers)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data, times in seconds."""
        numbers = self.together
        return {
            "minutes": self._by_minute(),
            "accepted": dict(numbers.accepted),
            "poison": numbers.events["poison"],
            "outcomes": [
                {"outcome": outcome, "category": category, "route": route, "count": n}
                for (outcome, category, route), n in sorted(numbers.ended.items())
            ],
            "lateness": {name: _quantiles(each) for name, each in sorted(numbers.late.items())},
            "provider_latency": {name: _quantiles(each) for name, each in sorted(numbers.answers.items())},
            "now": {name or "redis": _now(now) for name, now in self.now.items()},
        }

    def as_live(self) -> dict[str, Any]:
        """What changes all the time: the minutes, and what is now on all shards together."""
        lanes = [lane for now in self.now.values() for lane in now.lanes.values()]
        return {
            "minutes": self._by_minute(),
            "now": {
                "queued": sum(lane.queued for lane in lanes),
                "waiting": sum(lane.waiting for lane in lanes),
                "due_users": sum(lane.due_users for lane in lanes),
                "in_flight": sum(now.in_flight for now in self.now.values()),
                "oldest_due": max((now.oldest_due_s for now in self.now.values()), default=0.0),
            },
        }

    def _by_minute(self) -> list[dict[str, Any]]:
        return [_minute(minute, each) for minute, each in sorted(self.minutes.items())]


def read_now(redis: Any) -> Now:
    """What is now, in one Redis. Raises RedisUnusableError."""
    with redis_answers():
        now_us = clock_us(redis.time())
        with redis.pipeline(transaction=False) as pipe:
            for lane in LANES:
                pipe.llen(rq_key("queue", lane))
                pipe.zcard(rq_key("scheduled", lane))
                pipe.zcount(redis_key("gates", lane), "-inf", now_us)
                pipe.zrange(redis_key("gates", lane), 0, 0, withscores=True)
            pipe.zcard(redis_key("later"))
            pipe.zcard(redis_key("leases"))
            pipe.hgetall(redis_key("stats"))
            pipe.info("memory")
            *of_lanes, later, leases, totals, memory = pipe.execute()
        lanes: dict[str, LaneNow] = {lane: _lane(of_lanes[4 * n : 4 * n + 4], now_us) for n, lane in enumerate(LANES)}
        return Now(
            lanes,
            later,
            leases,
            read_routes(redis),
            read_workers(redis),
            {name.decode(): int(n) for name, n in totals.items()},
            (memory["used_memory"], memory.get("maxmemory", 0)),
            now_us // 60_000_000,
        )


def read_stats(clients: dict[str, Any], last: int) -> Stats:
    """What is now, and the last so many minutes, the one that has begun among them. Raises RedisUnusableError."""
    stats = Stats({name: read_now(redis) for name, redis in clients.items()})
    with redis_answers():
        for redis in clients.values():
            newest = minute_now(redis)
            for minute in range(newest - last + 1, newest + 1):
                stats.minutes.setdefault(minute, Numbers())
            for minute, fields in read_fields(redis, range(newest - last + 1, newest + 1)).items():
                stats.minutes[minute].add(fields)
                stats.together.add(fields)
    return stats


def _lane(found: Sequence[Any], now_us: int) -> LaneNow:
    queued, waiting, due, first = found
    oldest_us = max(0, now_us - int(first[0][1])) if due and first else 0
    return LaneNow(queued, waiting, due, oldest_us / 1e6)


def _minute(minute: int, numbers: Numbers) -> dict[str, Any]:
    outcomes = {word: n for word, n in sorted(numbers.outcomes().items()) if word not in UNENDED}
    retried = {word: n for word, n in sorted(numbers.outcomes().items()) if word in UNENDED}
    late = _quantiles(merged(numbers.late.values()))
    return {"at": minute * 60, "accepted": numbers.accepted.total(), "ended": outcomes, **retried, "lateness": late}


def _quantiles(histogram: Histogram) -> dict[str, Any]:
    shares = {f"p{round(share * 100)}": histogram.quantile_s(share) for share in (0.5, 0.99)}
    return {"count": histogram.total, "sum": round(histogram.sum_s, 6), **shares}


def _now(now: Now) -> dict[str, Any]:
    return {
        "lanes": {name: asdict(lane) for name, lane in now.lanes.items()},
        "later": now.later,
        "in_flight": now.in_flight,
        "oldest_due": now.oldest_due_s,
        "routes": [asdict(held) for held in now.routes],
        "workers": [asdict(worker) | {"healthy": worker.is_healthy()} for worker in now.workers],
        "totals": now.totals,
        "memory": {"used": now.memory[0], "max": now.memory[1]},
    }
