"""Laws 1, 3, 4, 6 and 8 with real worker processes, measured where the simulators received the messages."""

import os
import signal
import time
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

from notifier.rules.verify import out_of_order
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that, await_workers, stop, total

WIRE_WORKER = str(Path(__file__).with_name("wire_worker.py"))
RATES = {
    "user": {"windows": ["8/1s", "30/4s"], "gap": "30ms"},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent", "windows": ["3/1s"]},
        "marketing": {"lane": "bulk", "windows": ["2/1s"], "gap": "200ms"},
    },
}


def enqueue(fleet: Fleet, of: dict[int, tuple[str, str]]) -> None:
    with fleet.notifier() as notifier:
        each = (notification(user, n, category) for n, (user, category) in of.items())
        notifier.send_many(each, job_ids=(f"job-{n}" for n in of))


def disorder(of: dict[int, tuple[str, str]], fleet: Fleet) -> int:
    names = defaultdict(list)
    for n, who in of.items():
        names[who].append(str(n))
    return out_of_order(names, sends(fleet.arrivals(), of))


def test_four_workers_never_burst_a_user() -> None:
    """Law 1: two windows and a gap of the user, windows and a gap of the categories, all hold at the wire."""
    kinds = ["default", "default", "chat", "marketing"]
    of = {n: ("ada", kinds[n % 4]) for n in range(40)} | {100 + n: ("bob", kinds[n % 4]) for n in range(28)}
    with start_fleet(RATES, latency_ms=3) as fleet:
        enqueue(fleet, of)
        fleet.await_ended(len(of))
        arrived = sends(fleet.arrivals(), of)
        broken = broken_rules(fleet, arrived)
        disordered = disorder(of, fleet)
        looked = total(fleet.redis, "dispatched", "looked")

    assert broken == []
    assert sorted(int(send.name) for send in arrived) == sorted(of), "each once"
    assert disordered == 0, "law 4: in the order of acceptance within user and category"
    assert looked <= 1.2 * len(of), "several lines of one user still cost about a dispatch each"


def test_rules_hold_with_workers_whose_clocks_are_hours_off() -> None:
    """Law 6: Redis owns time; workers five hours ahead and three behind change nothing at the wire."""
    of = dict.fromkeys(range(40), ("ada", "default")) | {100 + n: ("bob", "chat") for n in range(12)}
    with start_fleet(RATES, workers=0) as fleet:
        for hours in ("5", "-3", "0"):
            fleet.start_worker((WIRE_WORKER, "--wire-log", str(fleet.wire_log), "--clock-hours", hours))
        await_workers(fleet.redis, 3)
        births = [fleet.redis.hget(f"rq:worker:worker-{n}", "birth").decode() for n in (1, 2, 3)]
        enqueue(fleet, of)
        fleet.await_ended(len(of))
        arrived = sends(fleet.arrivals(), of)
        broken = broken_rules(fleet, arrived)
        disordered = disorder(of, fleet)

    believed = [datetime.fromisoformat(birth) for birth in births]
    assert believed[0] - believed[2] > timedelta(hours=4.9), "the first worker's clock was wrong indeed"
    assert believed[2] - believed[1] > timedelta(hours=2.9), "and the second's"
    assert broken == []
    assert len(arrived) == len(of)
    assert disordered == 0


def test_order_holds_between_workers_near_and_far() -> None:
    """Law 4: in order whichever workers take them, also when one has a longer way to the provider than another."""
    of = {n: (f"u{n % 40}", "default") for n in range(1_200)}
    with start_fleet({"user": {"windows": ["10/1s"]}}, workers=0) as fleet:
        for far_ms in ("0", "30", "0", "30"):
            fleet.start_worker((WIRE_WORKER, "--wire-log", str(fleet.wire_log), "--far-ms", far_ms))
        await_workers(fleet.redis, 4)
        enqueue(fleet, of)
        fleet.await_ended(len(of))
        disordered = disorder(of, fleet)
        broken = broken_rules(fleet, sends(fleet.arrivals(), of))

    assert broken == []
    assert disordered == 0


def test_nothing_is_sent_while_redis_is_deaf_and_nothing_is_lost() -> None:
    """Law 8: with Redis stopped (SIGSTOP) nothing is sent; when it goes on, so do the workers, in order."""
    of = {n: (f"u{n % 4}", "default") for n in range(160)}
    rates = {"user": {"windows": ["10/1s"]}, "worker": {"lease": "20s"}, "redis": {"socket_timeout": "1s"}}
    with start_fleet(rates, workers=3, latency_ms=2, apns={"timeout": "8s"}) as fleet:
        enqueue(fleet, of)
        await_that(lambda: len(fleet.arrivals()) >= 40, "traffic")
        with fleet.stopped() as leased:
            stop(fleet.server.pid)
            stopped_us = time.time_ns() // 1000
        try:
            time.sleep(3)  # the time in which nothing may come is the measurement
        finally:
            resumed_us = time.time_ns() // 1000
            os.kill(fleet.server.pid, signal.SIGCONT)
        fleet.await_ended(len(of), 120)
        arrivals = fleet.arrivals()
        broken = broken_rules(fleet, sends(arrivals, of))
        disordered = disorder(of, fleet)

    meanwhile = {f"job-{a.data['n']}" for a in arrivals if stopped_us <= a.at_us < resumed_us}
    assert meanwhile <= leased, "nothing but what had its permit before the stop"
    assert broken == []
    assert {int(a.data["n"]) for a in arrivals} == set(of)
    assert len(arrivals) == len(of), "none twice"
    assert disordered == 0, "law 4: also after an outage"
