"""How fast limiters decide: in turn, several rounds, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redis import Redis

from benchmarks.harness import median
from tests.harness.processes import cpu_s

Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. client_us, redis_us: the processor time of a decision here and in Redis."""

    name: str
    per_second: float
    client_us: float
    redis_us: float


def measure(client: Redis, calls: Mapping[str, tuple[Call, int]], *, count: int, rounds: int) -> list[Row]:
    """Medians of the rounds. calls: by name, a call, and how many decisions it is."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (call, many) in calls.items():
            found[name].append(_run(client, call, many, count))
    return [Row(name, *(median(list(column)) for column in zip(*rows, strict=True))) for name, rows in found.items()]


def _run(client: Redis, call: Call, many: int, count: int) -> tuple[float, float, float]:
    calls = max(1, count // many)
    in_redis, begun, here = cpu_s(client), time.perf_counter(), time.process_time()
    for n in range(calls):
        call(n)
    here, took = time.process_time() - here, time.perf_counter() - begun
    decisions = calls * many
    return decisions / took, here * 1e6 / decisions, (cpu_s(client) - in_redis) * 1e6 / decisions
