"""Permits of users: one sequential client beside PING, and 16 processes on one user."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness import Figure, at_least, at_most, median, own_redis
from notifier.rules.kinds.window import Window
from notifier.rules.policy import Policy
from tests.harness.asking import InRedis
from tests.harness.scenarios import acquire_together

# Wide enough that nothing is held while it is measured, and one that holds nearly always.
OPEN = Policy((Window(100_000, interval_us=60_000_000), Window(200_000, interval_us=86_400_000_000)))
SHUT = Policy((Window(10, interval_us=86_400_000_000),), gap_us=1_500_000)
USERS = 100


def measure(*, quick: bool) -> list[Figure]:
    """Decisions a second as a ratio to PING in the same run, and the law test of 16 processes."""
    rounds, count = (1, 2_000) if quick else (5, 5_000)
    with own_redis() as (server, redis):
        limiter = InRedis(redis)
        for user in range(USERS):
            limiter.acquire(f"shut{user}", SHUT)
        calls: list[Callable[[int], object]] = [
            lambda _: redis.ping(),
            lambda n: limiter.acquire(f"open{n % USERS}", OPEN),
            lambda n: limiter.acquire(f"shut{n % USERS}", SHUT),
        ]
        rates = list(zip(*([_rate(call, count) for call in calls] for _ in range(rounds)), strict=True))
        redis.flushall()
        together = acquire_together(redis, server.url, seconds=3 if quick else 10)
    ping, allowed, blocked = map(median, rates)
    return [
        Figure("acquire, allowed", allowed, "/s"),
        Figure("acquire, allowed, to PING", allowed / ping, "x", None, "a plain Lua zset: 0.52"),
        Figure("acquire, blocked, to PING", blocked / ping, "x", None, "a plain Lua zset: 0.70"),
        Figure("16 processes: most in 1 s (limit 10)", together.most, "", at_most(10)),
        Figure("16 processes: least gap (50 ms)", together.smallest_gap_us / 1000, "ms", at_least(50)),
        Figure("16 processes: share of the ideal", 100 * together.share, "%", at_least(98)),
    ]


def _rate(call: Callable[[int], object], count: int) -> float:
    begun = time.perf_counter()
    for n in range(count):
        call(n)
    return count / (time.perf_counter() - begun)
