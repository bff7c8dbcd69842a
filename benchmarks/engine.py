"""The engine with a null provider and every rule in force, beside RQ's SimpleWorker with a no-op, in one run.

The queue is filled under another name while no worker looks, and renamed into place when all of them are up. Beside it
two floors, see `benchmarks.floor`.
"""

from __future__ import annotations

from typing import Any, Final

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from benchmarks.floor import bare, needed
from benchmarks.harness import Figure, at_least, at_most, median, own_redis
from benchmarks.null_worker import RATES
from benchmarks.workload import QUEUE, STAGED, Delivered, deliver_staged, notifications
from notifier import Notifier
from notifier.scripts.loader import script
from notifier.settings import parse_settings
from tests.harness.processes import await_that, await_workers, child

SEEN: Final = 2_000  # calls, of the latest
SEEN_US: Final = 500  # so neither an empty pull nor a command inside a script


def push(redis: Redis, url: str, count: int, workers: int) -> Delivered:
    """What it takes so many of our workers to deliver so many notifications."""
    redis.flushall()
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count))
    redis.rename(QUEUE, STAGED)
    return deliver_staged(redis, url, count, workers)


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


def script_ms(redis: Redis, name: str) -> float:
    """What a call of this script took in the middle, in ms, of those that SLOWLOG knows."""
    runs: Any = redis.slowlog_get(SEEN)
    sha = script(name).sha.encode()
    return median([run["duration"] / 1_000 for run in runs if run["command"].split(b" ")[1:2] == [sha]])


def measure(*, quick: bool) -> list[Figure]:
    """Jobs a second, and their ratios in the same run; medians, all taken in turns, a ratio that of its round."""
    rounds, count = (1, 5_000) if quick else (5, 20_000)
    one, two, peer, floor, redis_us, bare_us, needed_us, pull_ms, settle_ms = [], [], [], [], [], [], [], [], []
    with own_redis() as (server, redis):
        redis.config_set("slowlog-log-slower-than", SEEN_US)
        redis.config_set("slowlog-max-len", SEEN)
        for _ in range(rounds):
            peer.append(1_000 / simple_seconds(redis, server.url, 1_000))
            of_three, of_needs = bare(redis, count), needed(redis, count)
            floor.append(count / of_three.seconds)
            bare_us.append(of_three.redis_us)
            needed_us.append(of_needs.redis_us)
            alone = push(redis, server.url, count, 1)
            one.append(count / alone.seconds)
            redis_us.append(alone.redis_us)
            pull_ms.append(script_ms(redis, "pull"))
            settle_ms.append(script_ms(redis, "settle"))
            two.append(count / push(redis, server.url, count, 2).seconds)
    return [
        Figure("RQ SimpleWorker, no-op", median(peer), "jobs/s"),
        Figure("a bare loop of three Lua scripts", median(floor), "jobs/s", None, "no rules, nothing of RQ's"),
        Figure("engine, 1 worker", median(one), "jobs/s"),
        Figure("engine, 2 workers", median(two), "jobs/s"),
        Figure("engine, 1 worker: Redis CPU", median(redis_us), "µs a job"),
        Figure("Redis CPU, to the bare loop's", _ratio(redis_us, bare_us), "x", at_most(2.5)),
        Figure("Redis CPU, to the needed commands'", _ratio(redis_us, needed_us), "x", None, "nothing decided there"),
        Figure("needed commands, to the bare loop's", _ratio(needed_us, bare_us), "x"),
        Figure("a pull of 50", median(pull_ms), "ms", at_most(1)),
        Figure("a settlement of 50", median(settle_ms), "ms", at_most(1)),
        Figure("engine, 1 worker, to RQ", _ratio(one, peer), "x", at_least(45)),
        Figure("engine, 2 workers, to RQ", _ratio(two, peer), "x", at_least(45)),
        Figure("engine, 2 workers to 1", _ratio(two, one), "x", at_least(1.6)),
        Figure("engine, 1 worker, to the bare loop", _ratio(one, floor), "x", None, "aim: 0.5"),
    ]


def _ratio(rates: list[float], to: list[float]) -> float:
    return median([rate / other for rate, other in zip(rates, to, strict=True)])
