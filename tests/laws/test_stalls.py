"""Law 1 where a provider stalls with requests in its buffers: what it reads when it goes on is no burst.

The simulators are a process that is stopped (SIGSTOP): its kernel still takes connections and bytes. Both platforms and
both kinds of `on_unknown` share a run. `make stalls` runs the long ones too, which take minutes.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from notifier import Device, Notification
from tests.harness.fleet import Fleet, broken_rules, sends, start_fleet
from tests.harness.processes import await_that, total

FLEETS = [(1, 0), (3, 0), (3, 1)]  # how many workers, and how many of them are killed during the stall
RUNS = [(2.0, *fleet) for fleet in FLEETS] + [(8.0, 3, 1)]
if "STALLS_S" in os.environ:
    RUNS = [(float(text), *fleet) for text in os.environ["STALLS_S"].split() for fleet in FLEETS]
USERS, EACH = 3, 4  # of each platform and category
CATEGORIES = ("resent", "given-up")
RATES: dict[str, Any] = {
    "user": {"windows": ["2/2500ms"], "gap": "1s"},
    "categories": {
        "default": {"lane": "default"},
        "resent": {"lane": "default", "on_unknown": "resend"},
        "given-up": {"lane": "default", "on_unknown": "give_up"},
    },
}
WORKER = {"grace": "2s", "backoff": {"first": "50ms", "most": "200ms"}}
SHORT = {"timeout": "1s"}


@dataclass
class Story:
    """What was sent, by number, and how it went on."""

    of: dict[int, tuple[str, str]]
    notifications: list[Notification]

    @classmethod
    def begin(cls) -> Story:
        of: dict[int, tuple[str, str]] = {}
        notifications = []
        for _ in range(EACH):
            for platform in ("apns", "fcm"):
                for category in CATEGORIES:
                    for user in range(USERS):
                        n = len(of)
                        token = f"{n:064x}" if platform == "apns" else f"fcm-registration-{n:08d}"
                        of[n] = (f"{platform}-{category}-{user}", category)
                        notifications.append(
                            Notification(
                                user=of[n][0],
                                devices=[Device(platform, token)],
                                title="hi",
                                category=category,
                                data={"n": str(n)},
                            )
                        )
        return cls(of, notifications)


def stall(fleet: Fleet, seconds: float, kills: int) -> None:
    """Stop the simulators with a message of each user in their buffers; kill workers meanwhile, and replace them."""
    os.kill(fleet.simulators_pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        # Each user's next is with the provider, that is: under a lease.
        await_that(lambda: fleet.redis.zcard("notifier:leases") >= USERS * 4, "a message of each in the buffers", 20)
        for _ in range(kills):
            victim = fleet.workers.pop(0)
            victim.kill()
            victim.wait()
            fleet.start_worker()
        time.sleep(max(0.0, began + seconds - time.monotonic()))  # the stall is the fault that is measured
    finally:
        os.kill(fleet.simulators_pid, signal.SIGCONT)


@pytest.mark.parametrize(("seconds", "workers", "kills"), RUNS)
def test_what_a_stalled_provider_reads_at_last_is_no_burst(seconds: float, workers: int, kills: int) -> None:
    """Gap and windows hold at the wire, also for what a killed worker had sent; each message ends, and in time."""
    story = Story.begin()
    # Where nobody is killed, no lease is to end: a worker that the machine stops for so long would be taken for dead.
    rates = {**RATES, "worker": {**WORKER, "lease": "3s" if kills else "20s"}}
    with (
        start_fleet(rates, workers=workers, latency_ms=3, apns=SHORT, fcm=SHORT) as fleet,
        fleet.notifier() as notifier,
    ):
        notifier.send_many(story.notifications)
        await_that(lambda: total(fleet.redis, "delivered") >= USERS * 4, "the first of each")
        stall(fleet, seconds, kills)
        fleet.await_ended(len(story.of), 90)
        arrived = sends(fleet.arrivals(), story.of)
        broken = broken_rules(fleet, arrived)

    assert broken == []
    assert {int(send.name) for send in arrived} == set(story.of)
    given_up = [send for send in arrived if send.category == "given-up"]
    if not kills:
        assert max(Counter(send.name for send in given_up).values()) == 1, "what is given up is not sent again"
