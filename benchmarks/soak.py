"""A worker over half an hour of steady traffic: `python -m benchmarks.soak` prints its memory every minute.

It keeps its connection to the simulator, holds users back, is refused and told of dead tokens, and settles all of it:
what any of these leaves behind in the process would show. Status 1 if it has grown.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.__main__ import print_table
from benchmarks.harness import Figure, at_least, at_most, median
from notifier import Notification
from notifier.notification.job import TERMINAL
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import total

RATES: Final[dict[str, Any]] = {
    "user": {"windows": ["10/minute", "1000/day"], "gap": "500ms"},
    "categories": {"default": {"lane": "default", "windows": ["300/hour"]}, "chat": {"lane": "urgent"}},
}
USERS: Final = 2_000
TOKENS: Final = 10_000
EVERY_S: Final = 0.1  # between two bursts
LATENCY_MS: Final = 20.0
WARM_SHARE: Final = 1 / 3  # of the time: h2 remembers the last 65,536 streams of a connection, about 10 MB
SAMPLES: Final = 5  # of which the median is taken
MAX_GROWTH_KB: Final = 4_096  # 18 bytes for each of 240,000 notifications


def traffic(first: int, count: int) -> Iterator[Notification]:
    """So many, for users of whom some come again within their gap."""
    for n in range(first, first + count):
        category = "chat" if n % 4 == 0 else "default"
        yield notification(f"u{random.randrange(USERS)}", n % TOKENS, category, body="b" * 200, expires_in=300)


def trouble(times: int) -> dict[str, list[dict[str, Any]]]:
    """What some of the tokens answer each time: dead, or to be tried again."""
    dead = {"status": 410, "reason": "Unregistered"}
    busy = {"status": 429, "reason": "TooManyRequests"}
    return {f"{n:064x}": [dead if n % 200 else busy] * times for n in range(0, TOKENS, 100)}


def resident_kb(process: int) -> int:
    """How much memory a process has, in KB."""
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=True)
    return int(said.stdout)


def run(minutes: float, rate: int) -> list[Figure]:
    """So many minutes at so many notifications a second."""
    sampled: list[int] = []
    times = max(1, int(minutes * 60 * rate / TOKENS))
    with (
        start_fleet(RATES, workers=1, latency_ms=LATENCY_MS, scripts=trouble(times)) as fleet,
        fleet.notifier() as producer,
    ):
        begun = time.monotonic()
        accepted = 0
        while (passed := time.monotonic() - begun) < minutes * 60:
            due = int(passed * rate) - accepted
            accepted += producer.send_many(traffic(accepted, due))
            if passed >= len(sampled) * 60:
                sampled.append(_sample(fleet, len(sampled), accepted))
            time.sleep(EVERY_S)
        sampled.append(_sample(fleet, len(sampled), accepted))
        ended = total(fleet.redis, *TERMINAL)
    warm = int(len(sampled) * WARM_SHARE)
    settled, last = sampled[warm : warm + SAMPLES], sampled[-SAMPLES:]
    return [
        Figure("soak: notifications ended", ended, ""),
        Figure(
            "soak: of those accepted", 100 * ended / accepted, "%", at_least(95), "the rest waits for its user's limits"
        ),
        Figure("soak: a worker's memory at the end", median(last) / 1024, "MB"),
        Figure("soak: its growth since it was warm", median(last) - median(settled), "KB", at_most(MAX_GROWTH_KB)),
    ]


def _sample(fleet: Fleet, minute: int, accepted: int) -> int:
    kb = resident_kb(fleet.workers[0].pid)
    ended = total(fleet.redis, *TERMINAL)
    redis_mb = fleet.redis.info("memory")["used_memory"] / 2**20
    print(
        f"minute {minute:3}: {kb / 1024:7.2f} MB, {ended:,} of {accepted:,} ended, Redis {redis_mb:.1f} MB", flush=True
    )
    return kb


def main(argv: Sequence[str] | None = None) -> int:
    """Print the memory over time, and whether it grew; 1 if it did."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="A worker's memory over time.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=int, default=200, help="notifications a second")
    options = parser.parse_args(argv)
    figures = run(options.minutes, options.rate)
    print_table(figures)
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
