"""Laws 1, 2 and 4 with a Redis that forgets its scripts, cuts its connections, or is restarted under load."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
from consistency import assert_empty_of_work

from benchmarks.fleet import Fleet, broken_rules, notification, sends, start_fleet
from benchmarks.harness import total
from notifier.simulators.laws import out_of_order

RATES = {
    "user": {"windows": ["5/1s"], "gap": "20ms"},
    "worker": {"lease": "3s", "grace": "2s"},
    "redis": {"socket_timeout": "1s"},
}
OF = {n: (f"u{n % 20}", "default") for n in range(400)}


def enqueue(fleet: Fleet) -> None:
    with fleet.notifier() as notifier:
        notifier.send_many(notification(user, n) for n, (user, _) in OF.items())


def judge(fleet: Fleet) -> tuple[list[str], int, int]:
    """The broken rules, how many came twice, and how many out of order."""
    fleet.await_ended(len(OF), 60)
    arrivals = fleet.arrivals()
    names = defaultdict(list)
    for n, who in OF.items():
        names[who].append(str(n))
    assert {int(a.data["n"]) for a in arrivals} == set(OF)
    assert total(fleet.redis, "delivered") == len(OF)
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(10)
    assert_empty_of_work(fleet.redis)
    of = sends(arrivals, OF)
    return broken_rules(fleet, of), len(arrivals) - len(OF), out_of_order(names, of)


def test_lost_scripts_are_loaded_again() -> None:
    """Law 2: SCRIPT FLUSH again and again, as after failovers, loses, repeats and reorders nothing."""
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "1s"}) as fleet:
        enqueue(fleet)
        flushes = 0
        while total(fleet.redis, "delivered") < len(OF):
            fleet.redis.script_flush()
            flushes += 1
            time.sleep(0.02)  # how often it happens is the fault
        found = judge(fleet)

    assert flushes > 20
    assert found == ([], 0, 0)


def test_cut_connections_are_made_again() -> None:
    """Law 2: CLIENT KILL TYPE normal in the middle of everything loses nothing and bursts nobody."""
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "1s"}) as fleet:
        enqueue(fleet)
        for kill in range(6):
            fleet.await_delivered(50 * (kill + 1))
            fleet.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        broken, repeats, _ = judge(fleet)
        alive = [worker.returncode for worker in fleet.workers]

    assert broken == []
    assert repeats == 0, "what was sent is settled over the next connection"
    assert alive == [0, 0, 0], "no worker gave up"


@pytest.mark.parametrize("how", ["restart", "power cut"])
def test_a_restart_of_redis_with_its_data_loses_nothing(how: str) -> None:
    """Laws 1, 2 and 8: Redis goes away under load and comes back with its data; the workers go on by themselves."""
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "1s"}, appendonly=True) as fleet:
        enqueue(fleet)
        for goal in (80, 200):
            fleet.await_delivered(goal)
            if how == "power cut":
                fleet.server.kill()
            fleet.server.restart()
            fleet.redis.connection_pool.disconnect()
        broken, repeats, _ = judge(fleet)
        alive = [worker.returncode for worker in fleet.workers]

    assert broken == []
    assert repeats == 0
    assert alive == [0, 0, 0]
