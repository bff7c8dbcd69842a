"""The limiters that are driven beside ours: those of packages that `make bench-limiter` installs."""

from __future__ import annotations

import importlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from redis import Redis

from notifier.limiter import Policy
from tests.harness.limiter_load import Driven, Ours, Span

SECOND_US: Final = 1_000_000


class _Peer:
    """A limiter that only says yes or no: an admission took place between the call and its answer."""

    def __init__(self, admits: Callable[[str], bool], forget: Callable[[str], object]) -> None:
        self._admits = admits
        self._forget = forget

    def ask(self, key: str) -> Span | None:
        """See `Driven.ask`."""
        begun = time.time_ns() // 1000
        return (begun, time.time_ns() // 1000) if self._admits(key) else None

    def forget(self, keys: Iterable[str]) -> None:
        """See `Driven.forget`."""
        for key in keys:
            self._forget(key)


def _limits(strategy: str, url: str, policy: Policy, namespace: str) -> _Peer:
    limits = importlib.import_module("limits")
    storage = importlib.import_module("limits.storage").storage_from_string(url)
    asked = getattr(importlib.import_module("limits.strategies"), strategy)(storage)
    (window,) = policy.windows
    item = limits.RateLimitItemPerSecond(window.limit, window.interval_us // SECOND_US)
    return _Peer(lambda key: asked.hit(item, namespace, key), lambda key: asked.clear(item, namespace, key))


def _throttled(using: str, url: str, policy: Policy, namespace: str) -> _Peer:
    throttled = importlib.import_module("throttled")
    (window,) = policy.windows
    quota = throttled.rate_limiter.per_duration(timedelta(microseconds=window.interval_us), window.limit)
    store = throttled.RedisStore(server=url)
    asked = throttled.Throttled(using=using, quota=quota, store=store)
    redis = Redis.from_url(url)

    def forget(key: str) -> None:
        for found in redis.scan_iter(f"*{namespace}:{key}*"):
            redis.delete(found)

    return _Peer(lambda key: not asked.limit(f"{namespace}:{key}").limited, forget)


def _pyrate(url: str, policy: Policy, namespace: str) -> _Peer:
    pyrate = importlib.import_module("pyrate_limiter")
    (window,) = policy.windows
    rates, redis = [pyrate.Rate(window.limit, window.interval_us // 1000)], Redis.from_url(url)
    buckets: dict[str, Any] = {}

    def admits(key: str) -> bool:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = pyrate.RedisBucket.init(rates, redis, f"{namespace}:{key}")
        return bool(bucket.put(pyrate.RateItem(key, time.time_ns() // 1_000_000)))

    return _Peer(admits, lambda key: redis.delete(f"{namespace}:{key}"))


def _not_atomic(url: str, policy: Policy, namespace: str) -> _Peer:
    """A sorted set that is counted first and added to then, as limiters without a script do it."""
    (window,) = policy.windows
    seconds, redis = window.interval_us / SECOND_US, Redis.from_url(url)

    def admits(key: str) -> bool:
        now, name = time.time(), f"{namespace}:{key}"
        with redis.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(name, 0, now - seconds)
            pipe.zcard(name)
            count = pipe.execute()[1]
        if count >= window.limit:
            return False
        with redis.pipeline(transaction=False) as pipe:
            pipe.zadd(name, {f"{now}:{secrets.token_hex(4)}": now})
            pipe.expire(name, int(seconds) + 1)
            pipe.execute()
        return True

    return _Peer(admits, lambda key: redis.delete(f"{namespace}:{key}"))


# name: the package that it needs, and what makes it.
STRATEGIES: Final[Mapping[str, tuple[str, Callable[[str, Policy, str], Driven]]]] = {
    "ours": ("", Ours),
    "limits-moving-window": ("limits", partial(_limits, "MovingWindowRateLimiter")),
    "limits-sliding-window": ("limits", partial(_limits, "SlidingWindowCounterRateLimiter")),
    "limits-fixed-window": ("limits", partial(_limits, "FixedWindowRateLimiter")),
    "throttled-sliding-window": ("throttled", partial(_throttled, "sliding_window")),
    "throttled-gcra": ("throttled", partial(_throttled, "gcra")),
    "throttled-fixed-window": ("throttled", partial(_throttled, "fixed_window")),
    "pyrate-limiter": ("pyrate_limiter", _pyrate),
    "not-atomic": ("", _not_atomic),
}


def made(name: str, url: str, policy: Policy, namespace: str) -> Driven:
    """The limiter of this name."""
    return STRATEGIES[name][1](url, policy, namespace)
