"""The engine with a null provider and every rule in force, beside RQ's SimpleWorker with a no-op, in one run.

The queue is filled under another name while no worker looks, and renamed into place when all of them are up:
what is timed is the work, not the start of Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from benchmarks.harness import Figure, at_least, await_that, await_workers, child, median, own_redis, total
from benchmarks.null_worker import RATES
from notifier import Device, Notification, Notifier
from notifier.settings import parse_settings

QUEUE = "rq:queue:default"
STAGED = "benchmarks:staged"
PER_USER = 5


def notifications(count: int) -> Iterator[Notification]:
    """So many, five to a user, with a body of 200 bytes."""
    users = max(1, count // PER_USER)
    for n in range(count):
        yield Notification(user=f"u{n % users}", devices=[Device("fcm", "x" * 40)], title="hi", body="b" * 200)


def push_seconds(redis: Redis, url: str, count: int, workers: int) -> float:
    """Seconds in which so many of our workers deliver so many notifications."""
    redis.flushall()
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count))
    redis.rename(QUEUE, STAGED)
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(child(["-m", "benchmarks.null_worker", "push", url]))
        await_workers(redis, workers)
        await_that(lambda: bool(redis.exists("notifier:watch")), "a worker on watch")
        redis.config_resetstat()
        redis.rename(STAGED, QUEUE)
        return await_that(lambda: total(redis, "delivered") >= count, "all to be delivered", 300, 0.01)


def simple_seconds(redis: Redis, url: str, count: int) -> float:
    """Seconds in which one SimpleWorker of RQ's runs so many no-ops."""
    redis.flushall()
    queue = Queue("default", connection=redis, serializer=JSONSerializer)
    for begin in range(0, count, 500):
        jobs = [
            Queue.prepare_data("benchmarks.null_worker.noop", kwargs={"body": "b" * 200})
            for _ in range(min(500, count - begin))
        ]
        queue.enqueue_many(jobs)
    redis.rename(QUEUE, STAGED)
    with child(["-m", "benchmarks.null_worker", "simple", url]):
        await_workers(redis, 1)
        redis.rename(STAGED, QUEUE)
        return await_that(lambda: redis.zcard("rq:finished:default") >= count, "all to be finished", 300, 0.01)


def measure(*, quick: bool) -> list[Figure]:
    """Jobs a second, and their ratio to RQ's in the same run; medians, the three taken in turns."""
    rounds, count = (1, 5_000) if quick else (3, 20_000)
    one, two, peer = [], [], []
    with own_redis() as (server, redis):
        for _ in range(rounds):
            peer.append(1_000 / simple_seconds(redis, server.url, 1_000))
            one.append(count / push_seconds(redis, server.url, count, 1))
            two.append(count / push_seconds(redis, server.url, count, 2))
    base = median(peer)
    return [
        Figure("RQ SimpleWorker, no-op", base, "jobs/s"),
        Figure("engine, 1 worker", median(one), "jobs/s"),
        Figure("engine, 2 workers", median(two), "jobs/s"),
        Figure("engine, 1 worker, to RQ", median(one) / base, "x", at_least(10), "aim: 20"),
        Figure("engine, 2 workers, to RQ", median(two) / base, "x", at_least(10), "aim: 20"),
    ]
