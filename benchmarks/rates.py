"""Rates of fifty thousand users of their own: found for a notification, and read anew while a worker sends."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.harness import Figure, at_most, median
from notifier.policy import Policies
from workers.reload import read

USERS: Final = 50_000
CONFIG: Final = "user: {windows: [10/minute, 200/day], gap: 1500ms}\nusers_from: users.csv\n"
HEADER: Final = "user,windows,gap\n"


def measure(*, quick: bool) -> list[Figure]:
    """Microseconds a look-up; seconds a reading; and for how long the event loop stood still meanwhile at most."""
    rounds = 3 if quick else 7
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notifier.yaml"
        path.write_text(CONFIG, encoding="utf-8")
        rows = (f"user-{n},{n % 50 + 1}/minute 200/day,{n % 9}s\n" for n in range(USERS))
        (path.parent / "users.csv").write_text(HEADER + "".join(rows), encoding="utf-8")
        policies = read(path, None)[1]
        found_us = [_found_us(policies) for _ in range(rounds)]
        readings = [asyncio.run(_read_anew(path)) for _ in range(rounds)]
    took_s, stopped_s = (median(values) for values in zip(*readings, strict=True))
    return [
        Figure(f"rates of one of {USERS:,} users", median(found_us), "µs", at_most(5), "user's and category's"),
        Figure(f"rates of {USERS:,} users, read anew", took_s, "s", at_most(2), "in a thread, while it sends"),
        Figure("sending stopped meanwhile, at most", stopped_s * 1_000, "ms", at_most(50)),
    ]


def _found_us(policies: Policies) -> float:
    names = [f"user-{n}" for n in range(USERS)]
    begun = time.perf_counter()
    for name in names:
        policies.rules(name, "default")
    return (time.perf_counter() - begun) / USERS * 1e6


async def _read_anew(path: Path) -> tuple[float, float]:
    """How long it took, and the longest time in which the event loop did nothing else, in seconds."""
    begun = time.perf_counter()
    reading, longest_s = asyncio.create_task(asyncio.to_thread(read, path, None)), 0.0
    while not reading.done():
        since = time.perf_counter()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.perf_counter() - since)
    await reading
    return time.perf_counter() - begun, longest_s
