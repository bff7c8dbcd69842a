"""Two dozen idle workers: what they cost Redis, and how soon one of them starts on what arrives."""

from __future__ import annotations

import time

from redis import Redis

from benchmarks.harness import Figure, at_most
from notifier import Notifier
from notifier.rules.verify import percentile
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import await_that, cpu_s

WORKERS = 24


def measure(*, quick: bool) -> list[Figure]:
    """Redis's share of a core while all are idle, and the time from the call of the producer to the wire."""
    workers, seconds, jobs = (6, 3.0, 20) if quick else (WORKERS, 10.0, 300)
    with start_fleet({}, workers=workers) as fleet, fleet.notifier() as notifier:
        time.sleep(2)  # the last of them come to rest
        share = cpu_share(fleet.redis, seconds)
        # The first opens a connection to the provider in whichever worker takes it.
        starts = to_wire_us(fleet, notifier, jobs)
    said = f"{workers} idle workers"
    return [
        Figure(f"{said}: Redis CPU", 100 * share, "% of a core", at_most(3)),
        Figure(f"{said}: enqueue to wire, p50", percentile(starts, 0.5) / 1000, "ms"),
        Figure(f"{said}: enqueue to wire, p99", percentile(starts, 0.99) / 1000, "ms", at_most(10)),
    ]


def cpu_share(redis: Redis, seconds: float) -> float:
    """The share of one core that Redis uses in the next so many seconds."""
    before, begun = cpu_s(redis), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(redis) - before) / (time.monotonic() - begun)


def to_wire_us(fleet: Fleet, notifier: Notifier, jobs: int) -> list[int]:
    """From the call of the producer to the wire, of so many that are sent one by one, to users `i…` of their own."""
    before, called_us = len(fleet.arrivals()), {}
    for n in range(jobs):
        called_us[n] = time.time_ns() // 1000
        notifier.send(notification(f"i{n}", n))
        time.sleep(0.05)
    await_that(lambda: len(fleet.arrivals()) == before + jobs, "all jobs")
    return [arrival.at_us - called_us[int(arrival.data["n"])] for arrival in fleet.arrivals()[before:]]
