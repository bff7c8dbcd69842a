"""Our limiter beside its peers, each in one client and one Redis, as a ratio to PING: make bench-limiter.

The peers come from benchmarks/.peers, where `make bench-limiter` installs them. --quick asks a fiftieth as often.
--only TEXT measures the rows of the first table alone that have one of these in their names, and PING.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import redis.asyncio
from redis import Redis

from benchmarks.harness import own_redis
from benchmarks.limiter_facts import clock_off, least_gap_ms, memory_of_a_key
from benchmarks.limiter_peers import COST, HELD_BY, KEYS, peers
from benchmarks.limiter_rates import Call, Row, measure
from benchmarks.limiter_strategies import STRATEGIES, made
from notifier.limiter import AsyncLimiter, Limiter, MemoryLimiter
from notifier.rules.rate_text import parse_rates
from tests.harness.limiter_load import Load, Report, drive

PEERS = Path(__file__).parent / ".peers"
OPEN, SHUT, BURST, FULL = "1000000/hour", "10/day", "burst 20 then 1/1h", f"{HELD_BY}/day"
BATCH, AT_ONCE = 50, 50
NOTES = """too many, too few: as far as the recorded moments prove it. p99 of 50: callers in two processes, none held.
2 h off: how many of 10/hour are admitted at one moment, if some callers have a clock that is two hours ahead.
sends: bytes of a key with so many in its window."""


@contextlib.contextmanager
def contenders(url: str, client: Redis, names: list[str]) -> Iterator[dict[str, tuple[Call, int]]]:
    """What is measured, by name: a call, and how many decisions it is."""
    ours, batch = Limiter.from_url(url, namespace="one"), [(f"batch{n}", OPEN) for n in range(BATCH)]
    usage = Limiter.from_url(url, namespace="usage", usage_keep="1d")
    memory = MemoryLimiter()
    with asyncio.Runner() as runner:
        aio = AsyncLimiter(redis.asyncio.Redis.from_url(url, protocol=2), namespace="aio")

        async def together() -> None:
            await asyncio.gather(*(aio.acquire(f"k{n}", OPEN) for n in range(AT_ONCE)))

        ours.acquire_many([("shut", SHUT)] * 11)
        ours.acquire_many([("burst", BURST)] * 21)
        ours.acquire_many([("full", FULL)] * HELD_BY)
        new = itertools.count()
        permit = ours.check("adjusted", "1000000000/hour", cost=100)
        calls: dict[str, tuple[Call, int]] = {
            "PING": (lambda _: client.ping(), 1),
            "ours, one key": (lambda _: ours.acquire("k", OPEN), 1),
            f"ours, {KEYS} keys": (lambda n: ours.acquire(f"k{n % KEYS}", OPEN), 1),
            "ours, new keys": (lambda _: ours.acquire(f"new{next(new)}", OPEN), 1),
            "ours, blocked": (lambda _: ours.acquire("shut", SHUT), 1),
            f"ours, held by {HELD_BY:,}": (lambda _: ours.acquire("full", FULL), 1),
            f"ours, cost {COST}": (lambda n: ours.acquire(f"c{n % KEYS}", "1000000000/hour", cost=COST), 1),
            "ours, adjust": (lambda n: ours.adjust(permit, 100 + n), 1),
            "ours, burst": (lambda n: ours.acquire(f"b{n % KEYS}", "burst 1000000 then 1/1ms"), 1),
            "ours, burst, blocked": (lambda _: ours.acquire("burst", BURST), 1),
            f"ours, acquire_many of {BATCH}": (lambda _: ours.acquire_many(batch), BATCH),
            f"ours, asyncio, {AT_ONCE} at once": (lambda _: runner.run(together()), AT_ONCE),
            "ours, with usage": (lambda n: usage.acquire(f"k{n % KEYS}", OPEN), 1),
            "ours, with usage, new keys": (lambda _: usage.acquire(f"new{next(new)}", OPEN), 1),
            "ours, in memory": (lambda n: memory.acquire(f"k{n % KEYS}", OPEN), 1),
        }
        for name in names[1:]:
            wide, narrow = (made(name, url, parse_rates(rates), name) for rates in (OPEN, SHUT))
            for _ in range(11):
                narrow.ask("shut")
            calls[f"{name}, {KEYS} keys"] = (lambda n, wide=wide: wide.ask(f"k{n % KEYS}")), 1
            calls[f"{name}, new keys"] = (lambda _, wide=wide: wide.ask(f"new{next(new)}")), 1
            calls[f"{name}, blocked"] = (lambda _, narrow=narrow: narrow.ask("shut")), 1
        yield calls | peers(url)
        runner.run(aio.aclose())


def print_rows(rows: list[Row]) -> None:
    """The table of speeds."""
    ping = rows[0]
    print(f"{'':44}{'decisions/s':>12}{'to PING':>9}{'client µs':>11}{'Redis µs':>10}{'to PING':>9}")
    for row in rows:
        speed = row.per_second / ping.per_second
        cost = row.redis_us / ping.redis_us
        print(f"{row.name:44}{row.per_second:12.0f}{speed:9.2f}{row.client_us:11.1f}{row.redis_us:10.1f}{cost:9.2f}")


def judged(name: str, calls: int) -> tuple[Report, float]:
    """16 processes on 4 keys at 200/s; and the p99 of 50 callers that are not held."""
    with own_redis() as (server, _):
        report = drive(Load(server.url, "200/s", 16, calls, 4, 16, STRATEGIES[name][1]))
    with own_redis() as (server, _):
        p99_ms = drive(Load(server.url, OPEN, 50, min(calls, 20_000), KEYS, 2, STRATEGIES[name][1])).p99_ms
    return report, p99_ms


def print_facts(names: list[str], calls: int, sends: list[int]) -> int:
    """The table of what each keeps; returns what ours admitted too many or too few."""
    head = (
        f"{'16 processes, 4 keys, 200/s':28}{'calls':>9}{'too many':>10}{'too few':>9}{'p99 of 50':>11}{'2 h off':>9}"
    )
    print("\n", head, *(f"{f'{count} sends':>14}" for count in sends), sep="")
    wrong = 0
    for name in names:
        report, p99_ms = judged(name, calls)
        if name == "ours":
            wrong = report.over_admitted + report.under_admitted
        facts = f"{report.calls:9}{report.over_admitted:10}{report.under_admitted:9}{p99_ms:8.1f} ms{clock_off(name):9}"
        memory = "".join(f"{memory_of_a_key(name, count):14,}" for count in sends)
        print(f"{name:28}{facts}{memory}", flush=True)
    print(NOTES)
    return wrong


def installed() -> list[str]:
    """The names of those that can be asked here."""
    names = []
    for name, (package, _) in STRATEGIES.items():
        if package and find_spec(package) is None:
            print(f"{name} is left out: there is no package {package}", file=sys.stderr)
        else:
            names.append(name)
    return names


def main() -> None:
    """Print the tables; status 1 where our limiter admitted too many or too few."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--calls", type=int, help="of 16 processes on each limiter")
    arguments = parser.parse_args()
    quick, only = arguments.quick, arguments.only
    if PEERS.is_dir():
        sys.path.append(str(PEERS))
        os.environ["PYTHONPATH"] = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(PEERS)])
    names = installed()
    with own_redis() as (server, client), contenders(server.url, client, names) as calls:
        wanted = {n: call for n, call in calls.items() if not only or n == "PING" or any(text in n for text in only)}
        print_rows(measure(client, wanted, count=1_000 if quick else 5_000, rounds=3 if quick else 9))
    if only:
        return
    print(f"\na gap of 50 ms, 16 processes: the least between two is {least_gap_ms():.3f} ms; no peer has a gap")
    sends = [10, 1_000] if quick else [10, 1_000, 100_000]
    sys.exit(1 if print_facts(names, arguments.calls or (20_000 if quick else 1_000_000), sends) else 0)


if __name__ == "__main__":
    main()
