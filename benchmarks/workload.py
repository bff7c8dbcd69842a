"""What the engine is given in the benchmarks, and how it is let at it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from redis import Redis

from notifier import Device, Notification
from tests.harness.processes import await_that, await_workers, child, total

QUEUE: Final = "rq:queue:default"
STAGED: Final = "benchmarks:staged"
PER_USER: Final = 5
REDIS_CPU: Final = ("used_cpu_user_main_thread", "used_cpu_sys_main_thread")


def notifications(count: int, name: str = "u") -> Iterator[Notification]:
    """So many, five to a user, with a body of 200 bytes. name: begins the users' names."""
    users = max(1, count // PER_USER)
    for n in range(count):
        yield Notification(user=f"{name}{n % users}", devices=[Device("fcm", "x" * 40)], title="hi", body="b" * 200)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What it took to deliver: seconds, and µs of Redis's CPU for each."""

    seconds: float
    redis_us: float


def deliver_staged(redis: Redis, url: str, count: int, workers: int, *rates: str) -> Delivered:
    """Start workers, and hand them what is staged when all are up: what is timed is the work, not Python's start.

    rates: a file with other rules than those of the benchmarks.
    """
    already = total(redis, "delivered")
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(child(["-m", "benchmarks.null_worker", "push", url, *rates]))
        await_workers(redis, workers)
        await_that(lambda: any(redis.scan_iter("notifier:leader:*")), "an idle leader")
        redis.slowlog_reset()
        before = redis_cpu(redis)
        redis.rename(STAGED, QUEUE)
        wanted = already + count
        seconds = await_that(lambda: total(redis, "delivered") >= wanted, "all to be delivered", 300, 0.01)
        return Delivered(seconds, 1e6 * (redis_cpu(redis) - before) / count)


def redis_cpu(redis: Redis) -> float:
    """Seconds of CPU that the thread has used in which Redis runs commands."""
    cpu = redis.info("cpu")
    return sum(float(cpu[name]) for name in REDIS_CPU)
