"""Our limiter beside the package limits, each in one client and one Redis, as a ratio to PING: make bench-limiter.

The peers come from benchmarks/.peers, where `make bench-limiter` installs them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio
from redis import Redis

from benchmarks.harness import median, own_redis
from notifier.limiter import AsyncLimiter, Limiter, MemoryLimiter
from notifier.operations.load import LIMITS, Load, drive

PEERS = Path(__file__).parent / ".peers"
OPEN, SHUT = "1000000/hour", "10/day"
KEYS, BATCH, AT_ONCE = 100, 50, 50
Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. redis_us: what a decision costs in Redis."""

    name: str
    per_second: float
    redis_us: float


def measure(*, count: int, rounds: int) -> list[Row]:
    """Every contender in turn, several rounds, so that a slow moment of the machine meets all of them."""
    with own_redis() as (server, client), contenders(server.url, client) as calls:
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, (call, many) in calls.items():
                rows[name].append(_run(client, call, many, count))
    return [Row(name, median([n for n, _ in found]), median([us for _, us in found])) for name, found in rows.items()]


@contextlib.contextmanager
def contenders(url: str, client: Redis) -> Iterator[dict[str, tuple[Call, int]]]:
    """What is measured, by name: a call, and how many decisions it is."""
    ours, batch = Limiter(client, namespace="one"), [(f"batch{n}", OPEN) for n in range(BATCH)]
    memory = MemoryLimiter()
    with asyncio.Runner() as runner:
        aio = AsyncLimiter(redis.asyncio.Redis.from_url(url, protocol=2), namespace="aio")

        async def together() -> None:
            await asyncio.gather(*(aio.acquire(f"k{n}", OPEN) for n in range(AT_ONCE)))

        ours.acquire_many([("shut", SHUT)] * 11)
        calls: dict[str, tuple[Call, int]] = {
            "PING": (lambda _: client.ping(), 1),
            "ours, one key": (lambda _: ours.acquire("k", OPEN), 1),
            f"ours, {KEYS} keys": (lambda n: ours.acquire(f"k{n % KEYS}", OPEN), 1),
            "ours, blocked": (lambda _: ours.acquire("shut", SHUT), 1),
            f"ours, acquire_many of {BATCH}": (lambda _: ours.acquire_many(batch), BATCH),
            f"ours, asyncio, {AT_ONCE} at once": (lambda _: runner.run(together()), AT_ONCE),
            "ours, in memory": (lambda n: memory.acquire(f"k{n % KEYS}", OPEN), 1),
        }
        calls |= _peers(url)
        yield calls
        runner.run(aio.aclose())


def _peers(url: str) -> dict[str, tuple[Call, int]]:
    try:
        import limits  # noqa: PLC0415
        from limits import storage, strategies  # noqa: PLC0415
    except ImportError:
        print("the package limits is not installed; its rows are left out", file=sys.stderr)
        return {}
    kept: Any = storage.storage_from_string(url)
    wide, narrow = limits.RateLimitItemPerHour(1_000_000), limits.RateLimitItemPerDay(10)
    calls: dict[str, tuple[Call, int]] = {}
    for name, strategy in LIMITS.items():
        of = getattr(strategies, strategy)(kept)
        for _ in range(11):
            of.hit(narrow, name, "shut")
        calls[f"{name}, {KEYS} keys"] = (lambda n, of=of, name=name: of.hit(wide, name, f"k{n % KEYS}")), 1
        calls[f"{name}, blocked"] = (lambda _, of=of, name=name: of.hit(narrow, name, "shut")), 1
    return calls


def _run(client: Redis, call: Call, many: int, count: int) -> tuple[float, float]:
    calls = max(1, count // many)
    cpu, begun = _cpu_us(client), time.perf_counter()
    for n in range(calls):
        call(n)
    took = time.perf_counter() - begun
    return calls * many / took, (_cpu_us(client) - cpu) / (calls * many)


def _cpu_us(client: Redis) -> float:
    info = client.info("cpu")
    return (info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6


def memory_of_a_key(sends: int) -> dict[str, int]:
    """Bytes of one key with so many sends in its window."""
    with own_redis() as (server, client):
        ours = Limiter(client, namespace="m")
        for n in range(0, sends, 1000):
            ours.acquire_many([("k", OPEN)] * min(1000, sends - n))
        found = {"ours": client.memory_usage("notifier:keys:m:{k}", samples=0) or 0}
        with contextlib.suppress(ImportError):
            import limits  # noqa: PLC0415
            from limits import storage, strategies  # noqa: PLC0415

            client.flushall()
            of = strategies.MovingWindowRateLimiter(storage.storage_from_string(server.url))
            for _ in range(sends):
                of.hit(limits.RateLimitItemPerHour(1_000_000), "k")
            (key,) = client.keys("*")
            found["limits-moving-window"] = client.memory_usage(key, samples=0) or 0
    return found


def main() -> None:
    """Print the tables; status 1 where our limiter admitted too many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    if PEERS.is_dir():
        sys.path.append(str(PEERS))
        os.environ["PYTHONPATH"] = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(PEERS)])
    rows = measure(count=1_000 if quick else 5_000, rounds=1 if quick else 5)
    ping = rows[0]
    print(f"{'':38}{'decisions/s':>12}{'to PING':>9}{'Redis µs':>10}{'to PING':>9}")
    for row in rows:
        speed, cost = row.per_second / ping.per_second, row.redis_us / ping.redis_us
        print(f"{row.name:38}{row.per_second:12.0f}{speed:9.2f}{row.redis_us:10.1f}{cost:9.2f}")
    for sends in (10, 1_000) if quick else (10, 1_000, 100_000):
        print(f"bytes of a key with {sends} sends: {memory_of_a_key(sends)}")
    over = 0
    for strategy in ("ours", *(LIMITS if "limits" in sys.modules else ())):
        with own_redis() as (server, _):
            report = drive(Load(server.url, "200/s", 16, 4_000 if quick else 40_000, 4, 4, strategy))
        print(
            f"{strategy}: {report.admitted} admitted of {report.calls} by 16 callers, {report.over_admitted} too many"
        )
        over += report.over_admitted if strategy == "ours" else 0
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
