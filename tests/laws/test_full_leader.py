"""Law 9: a leader that can take no more calls somebody idle, who need not find out by a timer."""

from __future__ import annotations

from pathlib import Path

from redis import Redis

from tests.fleet import notification, start_fleet
from tests.processes import await_that

PATIENT = str(Path(__file__).with_name("patient_worker.py"))


def listening(redis: Redis) -> int:
    """How many workers wait for a call."""
    return sum(client["cmd"] == "blpop" for client in redis.client_list())


def test_a_leader_without_room_calls_another() -> None:
    """Two workers that take one message each: the second goes while the first is still at the provider."""
    with start_fleet({"worker": {"in_flight": 1, "grace": "1ms"}}, workers=0, latency_ms=4_000) as fleet:
        for _ in range(2):
            fleet.start_worker((PATIENT,))
        await_that(lambda: listening(fleet.redis) == 2, "both to be idle")
        with fleet.notifier() as notifier:
            for number in range(2):
                notifier.send(notification(f"user-{number}", number))
            await_that(lambda: len(fleet.arrivals()) == 2, "both at the provider")
            assert fleet.redis.zcard("notifier:leases") == 2, "neither has been answered"
