"""The whole way of a push, enqueued, limited, sent, settled, by one worker, beside its provider alone on one server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.harness import Figure, at_least, median
from benchmarks.providers.contest import Contestant, Run, figure, run
from benchmarks.providers.task import BODY, TITLE, Task, device_token
from notifier import Device, Notification
from tests.harness.fleet import Fleet, start_fleet
from tests.harness.processes import await_that, total

# Every kind of rule is in force, and none of them holds anything back.
RATES: Final = {
    "user": {"windows": ["10/minute", "200/day"], "gap": "1ms"},
    "categories": {"default": {"lane": "default", "windows": ["100/hour"]}},
}
PER_USER: Final = 5
ALONE: Final = Contestant("APNs provider alone", "ours_apns")


def measure(*, quick: bool) -> list[Figure]:
    """Pushes a second to the simulator, as strict as Apple's and in Python; each way in turn."""
    rounds, count, seconds = (1, 4_000, 1.0) if quick else (5, 20_000, 2.0)
    alone, whole = [], []
    with start_fleet(RATES, workers=1) as fleet:
        apns = fleet.settings.providers.apns
        assert apns is not None
        assert apns.key_file is not None
        port = urlsplit(apns.endpoint).port or 443
        task = Task(port, str(apns.ca_file), str(Path(apns.key_file).parent), fleet.settings.worker.in_flight, seconds)
        _deliver(fleet, "warm-up", 1_000)
        for number in range(rounds):
            alone.append(run(ALONE, task))
            whole.append(count / _deliver(fleet, f"round-{number}", count))
    note = f"simulator in Python, {task.in_flight} in flight"
    return [
        figure(f"{ALONE.name}, to the simulator", alone),
        Figure("the whole way, 1 worker", median(whole), "/s", None, note),
        Figure("the whole way, to the provider alone", _ratio(whole, alone), "x", at_least(0.5)),
    ]


def _ratio(whole: list[float], alone: list[Run]) -> float:
    return median([rate / each.rate for rate, each in zip(whole, alone, strict=True)])


def _deliver(fleet: Fleet, name: str, count: int) -> float:
    """Seconds from the first call of the producer until so many are settled as delivered."""
    wanted = total(fleet.redis, "delivered") + count
    begun = time.perf_counter()
    with fleet.notifier() as notifier:
        notifier.send_many(_notifications(name, count))
    await_that(lambda: total(fleet.redis, "delivered") >= wanted, f"{count} delivered", 120, 0.01)
    return time.perf_counter() - begun


def _notifications(name: str, count: int) -> Iterator[Notification]:
    users = count // PER_USER
    for n in range(count):
        device = Device("apns", device_token(n))
        yield Notification(user=f"{name}-{n % users}", devices=[device], title=TITLE, body=BODY)
