"""The limiters that `notifier load` drives: ours, and those of packages that the caller has installed."""

from __future__ import annotations

import importlib
import importlib.util
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

from redis import Redis

from notifier.limiter import Hold, Limiter, Policy

# An admission, in µs: it took place no earlier than the first and no later than the second.
Span: TypeAlias = tuple[int, int]
SECOND_US: Final = 1_000_000


class Strategy(Protocol):
    """A limiter on a Redis, for keys of one namespace and one rate."""

    def ask(self, key: str) -> Span | None:
        """Ask for a key: when it was admitted, or None where it was refused."""
        ...

    def forget(self, keys: Iterable[str]) -> None:
        """Leave nothing behind."""
        ...


class Ours:
    """Our limiter; its permits say when they count, by Redis's clock."""

    def __init__(self, url: str, policy: Policy, namespace: str) -> None:
        self.limiter = Limiter.from_url(url, namespace=namespace)
        self._policy = policy

    def ask(self, key: str) -> Span | None:
        """See `Strategy.ask`."""
        answer = self.limiter.acquire(key, self._policy)
        return None if isinstance(answer, Hold) else (answer.at_us, answer.at_us)

    def forget(self, keys: Iterable[str]) -> None:
        """See `Strategy.forget`."""
        for key in keys:
            self.limiter.reset(key)


class _Peer:
    """A limiter that only says yes or no: an admission took place between the call and its answer."""

    def __init__(self, admits: Callable[[str], bool], forget: Callable[[str], object]) -> None:
        self._admits = admits
        self._forget = forget

    def ask(self, key: str) -> Span | None:
        """See `Strategy.ask`."""
        begun = time.time_ns() // 1000
        return (begun, time.time_ns() // 1000) if self._admits(key) else None

    def forget(self, keys: Iterable[str]) -> None:
        """See `Strategy.forget`."""
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


def _of_limits(strategy: str) -> Callable[[str, Policy, str], Strategy]:
    return lambda url, policy, namespace: _limits(strategy, url, policy, namespace)


def _of_throttled(using: str) -> Callable[[str, Policy, str], Strategy]:
    return lambda url, policy, namespace: _throttled(using, url, policy, namespace)


# name: the package that it needs, and what makes it.
STRATEGIES: Final[Mapping[str, tuple[str, Callable[[str, Policy, str], Strategy]]]] = {
    "ours": ("", Ours),
    "limits-moving-window": ("limits", _of_limits("MovingWindowRateLimiter")),
    "limits-sliding-window": ("limits", _of_limits("SlidingWindowCounterRateLimiter")),
    "limits-fixed-window": ("limits", _of_limits("FixedWindowRateLimiter")),
    "throttled-sliding-window": ("throttled", _of_throttled("sliding_window")),
    "throttled-gcra": ("throttled", _of_throttled("gcra")),
    "throttled-fixed-window": ("throttled", _of_throttled("fixed_window")),
    "pyrate-limiter": ("pyrate_limiter", _pyrate),
    "not-atomic": ("", _not_atomic),
}
PACKAGES: Final = {"limits": "limits", "throttled": "throttled-py", "pyrate_limiter": "pyrate-limiter"}


def check_strategy(name: str, policy: Policy) -> None:
    """Raise ValueError where a strategy is not known, not installed, or cannot do these rates."""
    if name not in STRATEGIES:
        raise ValueError(f"strategy is one of {', '.join(STRATEGIES)}, not {name!r}")
    if name == "ours":
        return
    if len(policy.windows) > 1 or policy.gap_us or policy.burst or policy.windows[0].interval_us % SECOND_US:
        raise ValueError(f"{name} takes one window of whole seconds")
    package = STRATEGIES[name][0]
    if package and importlib.util.find_spec(package) is None:
        raise ValueError(f"{name} needs the package {PACKAGES[package]}: pip install {PACKAGES[package]}")


def made(name: str, url: str, policy: Policy, namespace: str) -> Strategy:
    """The limiter of this name."""
    return STRATEGIES[name][1](url, policy, namespace)
