"""What limiters keep: memory of a key, a gap, and what a clock two hours off does."""

from __future__ import annotations

import time
from unittest.mock import patch

from benchmarks.harness import own_redis
from benchmarks.limiter_strategies import made
from notifier.rules.rate_text import parse_rates
from tests.harness.scenarios import acquire_together

OFF_S = 2 * 3600
BATCH = 1_000


def memory_of_a_key(name: str, sends: int) -> int:
    """Bytes of all keys that a limiter has for one key with so many sends in its window."""
    with own_redis() as (server, client):
        rates = "1000000/hour"
        limiter = made(name, server.url, parse_rates(rates), "m")
        client.ping()
        if name == "ours":
            for first in range(0, sends, BATCH):
                limiter.limiter.acquire_many([("k", rates)] * min(BATCH, sends - first))
        else:
            for _ in range(sends):
                limiter.ask("k")
        return sum(client.memory_usage(key, samples=0) or 0 for key in client.keys("*"))


def clock_off(name: str) -> int:
    """How many of 10 an hour are admitted at one moment, where a second caller's clock is two hours ahead."""
    wall, wall_ns = time.time, time.time_ns
    with own_redis() as (server, _):
        admitted = 0
        limiter = made(name, server.url, parse_rates("10/hour"), "off")
        admitted += sum(limiter.ask("k") is not None for _ in range(20))
        with (
            patch("time.time", lambda: wall() + OFF_S),
            patch("time.time_ns", lambda: wall_ns() + OFF_S * 1_000_000_000),
        ):
            admitted += sum(limiter.ask("k") is not None for _ in range(20))
    return admitted


def least_gap_ms() -> float:
    """The least time between two admissions of 16 processes under 10/s and a gap of 50 ms."""
    with own_redis() as (server, client):
        return acquire_together(client, server.url, seconds=3).smallest_gap_us / 1000
