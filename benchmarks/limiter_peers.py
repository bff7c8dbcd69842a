"""Costs, bursts and memory of the peers: what no load asks them for."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from redis import Redis

Call = Callable[[int], object]
Named = Iterator[tuple[str, Call]]
COST, KEYS, HELD_BY = 100, 100, 60_000
LARGE = 1_000_000_000


def peers(url: str) -> dict[str, tuple[Call, int]]:
    """A call of each, by name, of those that are installed."""
    calls: dict[str, tuple[Call, int]] = {}
    for rows in (_limits, _throttled, _pyrate):
        try:
            calls |= {name: (call, 1) for name, call in rows(url)}
        except ImportError:
            continue
    return calls


def _limits(url: str) -> Named:
    limits, strategies = importlib.import_module("limits"), importlib.import_module("limits.strategies")
    storages = importlib.import_module("limits.storage")
    storage, memory = storages.storage_from_string(url), storages.MemoryStorage()
    large, open_, full = (limits.RateLimitItemPerHour(n) for n in (LARGE, 1_000_000, HELD_BY))
    for name, kind in (
        ("limits-moving-window", "MovingWindowRateLimiter"),
        ("limits-sliding-window", "SlidingWindowCounterRateLimiter"),
        ("limits-fixed-window", "FixedWindowRateLimiter"),
    ):
        hit, in_memory = (getattr(strategies, kind)(each).hit for each in (storage, memory))
        yield f"{name}, cost {COST}", lambda n, hit=hit, kind=kind: hit(large, kind, f"k{n % KEYS}", cost=COST)
        yield f"{name}, in memory", lambda n, hit=in_memory: hit(open_, f"k{n % KEYS}")
        for _ in range(HELD_BY // 1000):
            hit(full, kind, "full", cost=1000)
        yield f"{name}, held by {HELD_BY:,}", lambda _, hit=hit, kind=kind: hit(full, kind, "full")


def _throttled(url: str) -> Named:
    throttled = importlib.import_module("throttled")
    quota, store = throttled.rate_limiter.per_duration, throttled.RedisStore(server=url)
    hour, memory = timedelta(hours=1), throttled.MemoryStore()
    for using in ("sliding_window", "gcra", "fixed_window"):
        name = f"throttled-{using.replace('_', '-')}"
        dear, cheap = (
            throttled.Throttled(using=using, quota=quota(hour, limit, burst=limit), store=each).limit
            for limit, each in ((LARGE, store), (1_000_000, memory))
        )
        yield f"{name}, cost {COST}", lambda n, limit=dear, using=using: limit(f"{using}-cost{n % KEYS}", cost=COST)
        yield f"{name}, in memory", lambda n, limit=cheap: limit(f"k{n % KEYS}")
    for using in ("gcra", "token_bucket"):
        name = f"throttled-{using.replace('_', '-')}"
        wide = throttled.Throttled(using=using, quota=quota(timedelta(seconds=1), 1000, burst=1_000_000), store=store)
        narrow = throttled.Throttled(using=using, quota=quota(hour, 1, burst=20), store=store)
        for _ in range(21):
            narrow.limit(f"{using}-shut")
        yield f"{name}, burst", lambda n, limit=wide.limit, using=using: limit(f"{using}{n % KEYS}")
        yield f"{name}, burst, blocked", lambda _, limit=narrow.limit, using=using: limit(f"{using}-shut")


def _pyrate(url: str) -> Named:
    pyrate: Any = importlib.import_module("pyrate_limiter")
    redis = Redis.from_url(url)
    hour_ms = 3_600_000

    def put(buckets: list[Any], weight: int = 1) -> Call:
        def ask(n: int) -> object:
            return buckets[n % len(buckets)].put(pyrate.RateItem("k", time.time_ns() // 1_000_000, weight))

        return ask

    def in_redis(limit: int, key: str) -> Any:
        return pyrate.RedisBucket.init([pyrate.Rate(limit, hour_ms)], redis, key)

    def gcra(limit: int, every_ms: int, key: str) -> Any:
        store = pyrate.RedisStateStore(redis, key)
        return pyrate.StateBucket([pyrate.Rate(limit, limit * every_ms)], pyrate.GCRA(), store)

    yield f"pyrate-limiter, cost {COST}", put([in_redis(LARGE, f"pc{n}") for n in range(KEYS)], COST)
    memory = [pyrate.InMemoryBucket([pyrate.Rate(1_000_000, hour_ms)]) for _ in range(KEYS)]
    yield "pyrate-limiter, in memory", put(memory)
    yield "pyrate-limiter-gcra, burst", put([gcra(1_000_000, 1, f"pb{n}") for n in range(KEYS)])
    shut = put([gcra(20, hour_ms, "pshut")])
    for n in range(21):
        shut(n)
    yield "pyrate-limiter-gcra, burst, blocked", shut
