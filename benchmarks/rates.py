"""Rates of fifty thousand users of their own: found for a notification, and read anew while a worker sends."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.harness import Figure, at_most, median, own_redis
from notifier.rules.policies import Policies
from notifier.scripts.keys import redis_key
from notifier.store.published import publish
from workers.configuration.reload import read

USERS: Final = 50_000
EVERYONE: Final = "user: {windows: [10/minute, 200/day], gap: 1500ms}\n"
RULES: Final = [(f"user-{n}", f"{n % 50 + 1}/minute", "200/day", f"{n % 9}s") for n in range(USERS)]


def measure(*, quick: bool) -> list[Figure]:
    """Microseconds a look-up; seconds a reading; and for how long the event loop stood still meanwhile at most."""
    rounds = 3 if quick else 7
    users = {user: {"windows": list(windows), "gap": gap} for user, *windows, gap in RULES}
    with tempfile.TemporaryDirectory() as folder, own_redis() as (_, redis):
        of_files, of_yaml = Path(folder) / "files.yaml", Path(folder) / "users.yaml"
        of_files.write_text(EVERYONE + "users_from: users.jsonl\n", encoding="utf-8")
        rows = (json.dumps({"user": user, **rules}) + "\n" for user, rules in users.items())
        of_files.with_name("users.jsonl").write_text("".join(rows), encoding="utf-8")
        lines = (f"  {user}: {json.dumps(rules)}\n" for user, rules in users.items())
        of_yaml.write_text(EVERYONE + "users:\n" + "".join(lines), encoding="utf-8")
        publish(redis, {"users": users}, 0)
        applied = bytes(redis.hget(redis_key("rates"), "rates") or b"")
        policies = read(of_files)[1]
        found_us = [_found_us(policies) for _ in range(rounds)]
        ways = (
            ("files of users", of_files, None, at_most(2)),
            ("applied", of_files, applied, None),
            ("YAML", of_yaml, None, None),
        )
        figures = [Figure(f"rates of one of {USERS:,} users", median(found_us), "µs", at_most(5), "and of a category")]
        for name, path, given, bar in ways:
            readings = [asyncio.run(_read_anew(path, given)) for _ in range(rounds)]
            took_s, stopped_s = (median(values) for values in zip(*readings, strict=True))
            figures += [
                Figure(f"{USERS:,} users read anew: {name}", took_s, "s", bar, "in a thread, while it sends"),
                Figure("sending stopped meanwhile, at most", stopped_s * 1_000, "ms", at_most(50)),
            ]
    return figures


def _found_us(policies: Policies) -> float:
    names = [f"user-{n}" for n in range(USERS)]
    begun = time.perf_counter()
    for name in names:
        policies.rules(name, "default")
    return (time.perf_counter() - begun) / USERS * 1e6


async def _read_anew(path: Path, applied: bytes | None) -> tuple[float, float]:
    """How long it took, and the longest time in which the event loop did nothing else, in seconds."""
    begun = time.perf_counter()
    reading, longest_s = asyncio.create_task(asyncio.to_thread(read, path, applied)), 0.0
    while not reading.done():
        since = time.perf_counter()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.perf_counter() - since)
    await reading
    return time.perf_counter() - begun, longest_s
