"""Enqueueing, one at a time and in bulk, beside RQ's own calls with a job of the same size, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from benchmarks.harness import Figure, at_least, median, own_redis
from benchmarks.null_worker import RATES
from benchmarks.workload import notifications
from notifier import Notifier
from notifier.settings import parse_settings

FUNCTION = "benchmarks.null_worker.noop"
BODY = {"body": "b" * 200}


def measure(*, quick: bool) -> list[Figure]:
    """Notifications a second and the ratios to RQ; medians, all taken in turns."""
    rounds, single, bulk = (1, 500, 3_000) if quick else (5, 2_000, 10_000)
    with own_redis() as (_, redis):
        notifier = Notifier(redis, parse_settings(RATES))
        queue = Queue("default", connection=redis, serializer=JSONSerializer)

        def send() -> None:
            for notification in notifications(single):
                notifier.send(notification)

        def rq_enqueue() -> None:
            for _ in range(single):
                queue.enqueue(FUNCTION, kwargs=BODY)

        def rq_enqueue_many() -> None:
            for _ in range(0, bulk, 100):
                queue.enqueue_many([Queue.prepare_data(FUNCTION, kwargs=BODY) for _ in range(100)])

        def send_many() -> None:
            notifier.send_many(notifications(bulk))

        calls: list[tuple[Callable[[], None], int]] = [
            (send, single),
            (rq_enqueue, single),
            (send_many, bulk),
            (rq_enqueue_many, bulk),
        ]
        rates = list(zip(*([_rate(redis, call, count) for call, count in calls] for _ in range(rounds)), strict=True))
    one, rq_one, many, rq_many = map(median, rates)
    return [
        Figure("send", one, "/s"),
        Figure("send, to RQ's enqueue", one / rq_one, "x", at_least(0.8), f"RQ {rq_one:,.0f}/s"),
        Figure("send_many", many, "/s"),
        Figure("send_many, to RQ's enqueue_many", many / rq_many, "x", at_least(1.2), f"RQ {rq_many:,.0f}/s"),
    ]


def _rate(redis: Redis, call: Callable[[], None], count: int) -> float:
    redis.flushall()
    begun = time.perf_counter()
    call()
    return count / (time.perf_counter() - begun)
