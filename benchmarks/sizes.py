"""The cost of a message where a few, and where very many others wait: by the clock, by Redis's CPU, the longest script.

What waits stands in backlogs, its wake-ups far ahead; what is timed is a stream of other users' notifications. A Redis
for each size, all of them filled first and then measured in turns. A million take 1.4 GB and some minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from redis import Redis

from benchmarks.harness import Figure, at_least, at_most, median, own_redis
from benchmarks.null_worker import RATES
from benchmarks.workload import QUEUE, STAGED, deliver_staged, notifications
from notifier import Device, Notification, Notifier
from notifier.queue import calls
from notifier.rules.category import LANES
from notifier.settings import parse_settings
from notifier.store.connection import time_us
from tests.harness.take import enter

HOUR_US: Final = 3_600_000_000
CHUNK: Final = 10_000
WAITING_EACH: Final = 10
LONGEST_US: Final = 2_000  # that a script may run
SEEN_US: Final = 500  # from here on SLOWLOG tells of it


@dataclass
class Size:
    """One Redis, how many wait in it and for how many users, and what was measured."""

    waiting: int
    users: int
    redis: Redis
    url: str
    rates: list[float] = field(default_factory=list)
    redis_us: list[float] = field(default_factory=list)
    longest_us: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.waiting:,} waiting" + (" of one user" if self.users == 1 else "")

    def fill(self) -> None:
        """Have so many stand in their backlogs, and nobody look at them within the hour."""
        Notifier(self.redis, parse_settings(RATES)).send_many(self._waiting())
        # All enter their backlogs, and are due then.
        while enter(self.redis, calls.Worker(name="nobody", lanes=LANES, lease_us=HOUR_US), calls.Room(100)).taken:
            pass
        for lane in LANES:
            users = self.redis.zrange(f"notifier:wakeups:{lane}", 0, -1)
            for n in range(0, len(users), CHUNK):
                later = dict.fromkeys(users[n : n + CHUNK], time_us(self.redis) + HOUR_US)
                self.redis.zadd(f"notifier:wakeups:{lane}", later)
        self.redis.config_set("slowlog-log-slower-than", SEEN_US)

    def _waiting(self) -> Iterator[Notification]:
        for n in range(self.waiting):
            yield Notification(f"waits{n % self.users}", [Device("fcm", "x" * 40)], title="hi", body="b" * 200)

    def measure(self, count: int, number: int) -> None:
        """Deliver so many of others."""
        Notifier(self.redis, parse_settings(RATES)).send_many(notifications(count, f"round{number}-"))
        self.redis.rename(QUEUE, STAGED)
        took = deliver_staged(self.redis, self.url, count, 1)
        self.rates.append(count / took.seconds)
        self.redis_us.append(took.redis_us)
        runs: Any = self.redis.slowlog_get(1_000)
        self.longest_us.append(max((entry["duration"] for entry in runs), default=0))


def measure(*, quick: bool) -> list[Figure]:
    """Each size beside the smallest, the ratios those of a round."""
    rounds, count = (1, 5_000) if quick else (5, 20_000)
    wanted = (
        [(1_000, 0), (20_000, 0), (20_000, 1)] if quick else [(1_000, 0), (100_000, 0), (1_000_000, 0), (100_000, 1)]
    )
    with contextlib.ExitStack() as stack:
        sizes = []
        for waiting, users in wanted:
            server, redis = stack.enter_context(own_redis())
            sizes.append(Size(waiting, users or waiting // WAITING_EACH, redis, server.url))
            sizes[-1].fill()
        for number in range(rounds):
            for size in sizes:
                size.measure(count, number)
    return [entry for size in sizes for entry in _figures(size, sizes[0])]


def _figures(size: Size, least: Size) -> list[Figure]:
    name = size.name
    found = [
        Figure(f"{name}: engine, 1 worker", median(size.rates), "jobs/s"),
        Figure(f"{name}: Redis CPU", median(size.redis_us), "µs a job"),
        Figure(
            f"{name}: longest script", median(size.longest_us) / 1000, "ms", at_most(LONGEST_US / 1000), "0: below 0.5"
        ),
    ]
    if size is least:
        return found
    rate = median([mine / other for mine, other in zip(size.rates, least.rates, strict=True)])
    cpu = median([mine / other for mine, other in zip(size.redis_us, least.redis_us, strict=True)])
    return [
        *found,
        Figure(f"{name}: jobs/s, to {least.waiting:,}", rate, "x", at_least(0.8)),
        Figure(f"{name}: Redis CPU, to {least.waiting:,}", cpu, "x", at_most(1.2)),
    ]
