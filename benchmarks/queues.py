"""`python -m benchmarks.queues [--quick]`: the engine beside BullMQ with jobs that do nothing, in turns in one run.

BullMQ has no rules for users; it is here because nothing else on Redis runs as many jobs a second. `make bench-peers`
installs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from redis import Redis

from benchmarks.__main__ import main
from benchmarks.engine import push
from benchmarks.harness import Figure, at_least, at_most, median, own_redis
from benchmarks.workload import redis_cpu

FOLDER: Final = Path(__file__).parent / "bullmq" / ".peers"
CONCURRENCY: Final = 100


@dataclass
class Rounds:
    """What each round measured: jobs a second, and µs of Redis's CPU a job."""

    rates: list[float] = field(default_factory=list)
    redis_us: list[float] = field(default_factory=list)


def measure(*, quick: bool) -> list[Figure]:
    """Both engines, medians, and the ratios of each round."""
    rounds, count = (1, 5_000) if quick else (5, 20_000)
    ours, theirs = Rounds(), Rounds()
    with own_redis() as (server, redis):
        for _ in range(rounds):
            _bullmq(redis, server.url, count, theirs)
            took = push(redis, server.url, count, 1)
            ours.rates.append(count / took.seconds)
            ours.redis_us.append(took.redis_us)
    rate = median([mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True)])
    cpu = median([mine / other for mine, other in zip(ours.redis_us, theirs.redis_us, strict=True)])
    return [
        Figure(f"BullMQ, {CONCURRENCY} at once", median(theirs.rates), "jobs/s", None, "no rules, no order of users"),
        Figure("BullMQ: Redis CPU", median(theirs.redis_us), "µs a job"),
        Figure("engine, 1 worker", median(ours.rates), "jobs/s"),
        Figure("engine, 1 worker: Redis CPU", median(ours.redis_us), "µs a job"),
        Figure("engine, 1 worker, to BullMQ", rate, "x", at_least(1)),
        Figure("engine, 1 worker: Redis CPU, to BullMQ's", cpu, "x", at_most(1)),
    ]


def _bullmq(redis: Redis, url: str, count: int, into: Rounds) -> None:
    redis.flushall()
    port = str(urlsplit(url).port)
    _node("fill", port, str(count))
    before = redis_cpu(redis)
    seconds = float(json.loads(_node("drain", port, str(count), str(CONCURRENCY)))["seconds"])
    into.rates.append(count / seconds)
    into.redis_us.append(1e6 * (redis_cpu(redis) - before) / count)


def _node(*args: str) -> str:
    done = subprocess.run(["node", "bullmq.mjs", *args], cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"BullMQ did not run:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main({"queues": measure}, "python -m benchmarks.queues"))
