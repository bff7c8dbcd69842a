"""Urgent notifications while very many others are due: how soon they leave, and what is left for the others."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from redis import Redis

from benchmarks.harness import Figure, at_least, at_most, own_redis
from benchmarks.null_worker import RATES
from notifier import Device, Notification, Notifier
from notifier.queue import calls
from notifier.rules.category import LANES
from notifier.rules.verify import percentile
from notifier.settings import parse_settings
from tests.harness.processes import await_that, await_workers, child, total
from tests.harness.take import enter

EACH: Final = 10  # notifications of one user
LEASE_US: Final = 1_000_000
EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Overloaded:
    """late_us: from the call of the producer to the provider, of each urgent one.

    rate: how many left a second meanwhile. share: of what left while many urgent ones came at once, that of the others.
    """

    late_us: list[int]
    rate: float
    share: float


def overload(bulk: int, urgent: int, flood: int, workers: int = 2) -> Overloaded:
    """So many are due at once in the lowest lane; urgent ones of others come one by one, then very many at once."""
    with own_redis() as (server, redis), tempfile.TemporaryFile() as told:
        notifier = Notifier(redis, parse_settings(RATES))
        _fill(notifier, redis, bulk)
        with contextlib.ExitStack() as stack:
            for _ in range(workers):
                stack.enter_context(child(["-m", "benchmarks.null_worker", "push", server.url], stdout=told))
            await_workers(redis, workers)
            await_that(lambda: total(redis, "delivered") > 0, "the first to leave")
            begun, before = time.monotonic(), total(redis, "delivered")
            called_us = []
            for n in range(urgent):
                called_us.append(time.time_ns() // 1000)
                notifier.send(_notification(f"one{n}", "urgent", {"n": str(n)}))
                time.sleep(EVERY_S)
            rate = (total(redis, "delivered") - before) / (time.monotonic() - begun)
            await_that(lambda: _urgent_left(redis), "the urgent ones")
            before = total(redis, "delivered")
            notifier.send_many(_notification(f"flood{n // EACH}", "urgent") for n in range(flood))
            await_that(lambda: _urgent_left(redis), "the flood")
            left = total(redis, "delivered") - before
        told.seek(0)
        at_us = {int(number): int(at) for number, at in map(bytes.split, told)}
    return Overloaded([at_us[n] - called for n, called in enumerate(called_us)], rate, (left - flood) / left)


def _notification(user: str, category: str, data: dict[str, str] | None = None) -> Notification:
    device = Device("fcm", "x" * 40)
    return Notification(user, [device], title="hi", body="b" * 200, category=category, data=data or {})


def _fill(notifier: Notifier, redis: Redis, bulk: int) -> None:
    notifier.send_many(_notification(f"bulk{n // EACH}", "bulk") for n in range(bulk))
    # All enter their backlogs under the lease of a worker that dies.
    while redis.exists("rq:queue:bulk"):
        enter(redis, calls.Worker(name="nobody", lanes=LANES, lease_us=LEASE_US), calls.Room(100), "bulk")
    time.sleep(LEASE_US / 1e6)  # then the wake-ups are due, all of them


def _urgent_left(redis: Redis) -> bool:
    return not redis.exists("rq:queue:urgent", "notifier:wakeups:urgent", "rq:wip:urgent")


def measure(*, quick: bool) -> list[Figure]:
    """Two workers with a null provider."""
    bulk, urgent, flood = (20_000, 40, 2_000) if quick else (200_000, 200, 10_000)
    found = overload(bulk, urgent, flood)
    name = f"{bulk:,} due, an urgent one"
    return [
        Figure(f"{name}: leaves, p50", percentile(found.late_us, 0.5) / 1000, "ms"),
        Figure(f"{name}: leaves, p99", percentile(found.late_us, 0.99) / 1000, "ms", at_most(100)),
        Figure(f"{bulk:,} due: these leave meanwhile", found.rate, "/s"),
        Figure(
            f"{bulk:,} due: their share of a flood", 100 * found.share, "%", at_least(5), "a tenth is kept for them"
        ),
    ]
