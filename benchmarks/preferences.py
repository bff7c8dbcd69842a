"""What the choices of 100,000 users cost: a message of somebody else, a message of theirs, and a worker's start.

Two Redis, one of them with the choices; both are measured in turns, so that the machine is the same for both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from redis import Redis

from benchmarks.harness import Figure, at_most, median, own_redis
from benchmarks.null_worker import RATES
from benchmarks.workload import QUEUE, STAGED, await_workers, child, deliver_staged, notifications
from notifier import Notifier
from notifier.rules.preferences import Preferences
from notifier.scripts.keys import redis_key
from notifier.settings import parse_settings

CHOSE: Final = 100_000
TEXT: Final = Preferences.of({"gap": "2ms"}).encode()


def measure(*, quick: bool) -> list[Figure]:
    """Redis's CPU for a message, of somebody else and of theirs; and what a start reads of the choices."""
    rounds, count = (3, 2_000) if quick else (7, 20_000)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(own_redis()) for _ in range(2)]
        _choose(servers[1][1])
        redis_us: list[tuple[float, float]] = []
        theirs_us: list[tuple[float, float]] = []
        starts: list[tuple[float, float]] = []
        for number in range(rounds):
            starts.append(tuple(_start_s(redis, server.url) for server, redis in servers))  # type: ignore[arg-type]
            redis_us.append(tuple(_redis_us(redis, server.url, count, f"other{number}-") for server, redis in servers))  # type: ignore[arg-type]
            theirs_us.append(
                tuple(_redis_us(redis, server.url, count, f"chose-{number + 1}") for server, redis in servers)
            )  # type: ignore[arg-type]
        read = _reads_at_start(*servers[1])
    return [
        _difference(f"{CHOSE:,} users chose: Redis CPU of another's message", redis_us, "µs", 2),
        _difference("of one of theirs", theirs_us, "µs", 20),
        Figure("commands of a worker's start that read choices", read, "", at_most(0)),
        Figure("a worker's start", 1e3 * (median([b - a for a, b in starts])), "ms more", None, "within noise"),
    ]


def _difference(name: str, pairs: list[tuple[float, float]], unit: str, bar: float) -> Figure:
    without, with_them = (median(values) for values in zip(*pairs, strict=True))
    more = median([after - before for before, after in pairs])
    return Figure(name, more, f"{unit} more", at_most(bar), f"{without:.1f} without, {with_them:.1f} with")


def _choose(redis: Redis) -> None:
    for first in range(0, CHOSE, 1_000):
        redis.hset(redis_key("preferences"), mapping={f"chose-{n}": TEXT for n in range(first, first + 1_000)})


def _redis_us(redis: Redis, url: str, count: int, name: str) -> float:
    Notifier(redis, parse_settings(RATES)).send_many(notifications(count, name))
    redis.rename(QUEUE, STAGED)
    return deliver_staged(redis, url, count, 1).redis_us


def _start_s(redis: Redis, url: str) -> float:
    begun = time.perf_counter()
    with child(["-m", "benchmarks.null_worker", "push", url]):
        await_workers(redis, 1)
        return time.perf_counter() - begun


def _reads_at_start(server: Any, redis: Redis) -> int:
    """How many commands of a worker that has nothing to do name the key of the choices, other than to see if it is."""
    with redis.monitor() as seen:
        with child(["-m", "benchmarks.null_worker", "push", server.url]):
            await_workers(redis, 1)
        redis.echo("over")
        return sum(redis_key("preferences") in command for command in _commands(seen))


def _commands(seen: Any) -> Iterator[str]:
    """Those that Redis ran until the echo, without EXISTS: each script asks whether there are any."""
    while True:
        command: str = seen.next_command()["command"]
        if command.startswith("ECHO"):
            return
        if not command.startswith("EXISTS"):
            yield command
