"""Laws 1, 2, 4 and 8 with a Redis that forgets its scripts, cuts its connections, hangs, refuses, or is restarted."""

import contextlib
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from notifier import LimiterUnreachableError, RedisUnusableError
from notifier.rules.verify import out_of_order
from tests.faults.consistency import assert_empty_of_work
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that, total

# What cannot be settled before its lease ends, or is not answered in time, may come twice: both are generous.
RATES = {
    "user": {"windows": ["5/1s"], "gap": "20ms"},
    "worker": {"lease": "20s", "grace": "2s"},
    "redis": {"socket_timeout": "1s"},
}
OF = {n: (f"u{n % 20}", "default") for n in range(400)}


def enqueue(fleet: Fleet) -> None:
    with fleet.notifier() as notifier:
        of = (notification(user, n) for n, (user, _) in OF.items())
        notifier.send_many(of, job_ids=(f"job-{n}" for n in OF))


def judge(fleet: Fleet) -> tuple[list[str], int, int]:
    """The broken rules, how many came twice, and how many out of order."""
    fleet.await_ended(len(OF), 120)
    arrivals = fleet.arrivals()
    names = defaultdict(list)
    for n, who in OF.items():
        names[who].append(str(n))
    assert {int(a.data["n"]) for a in arrivals} == set(OF)
    assert total(fleet.redis, "delivered") == len(OF)
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(60)
    assert_empty_of_work(fleet.redis)
    of = sends(arrivals, OF)
    return broken_rules(fleet, of), len(arrivals) - len(OF), out_of_order(names, of)


def test_lost_scripts_are_loaded_again() -> None:
    """Law 2: SCRIPT FLUSH again and again, as after failovers, loses, repeats and reorders nothing."""
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "8s"}) as fleet:
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
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "8s"}) as fleet:
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
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "8s"}, appendonly=True) as fleet:
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


@contextlib.contextmanager
def read_only(redis: Any) -> Iterator[None]:
    """A primary that somebody made a replica, of nobody who answers."""
    redis.replicaof("127.0.0.1", 1)
    yield
    redis.replicaof("NO", "ONE")


@contextlib.contextmanager
def without_replicas(redis: Any) -> Iterator[None]:
    """A primary that wants a replica before it writes."""
    redis.config_set("min-replicas-to-write", 1)
    yield
    redis.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def busy(redis: Any) -> Iterator[None]:
    """A Redis in which somebody's script does not come to its end."""
    redis.config_set("lua-time-limit", 1)

    def hang() -> None:
        with contextlib.suppress(Exception):
            redis.eval("while true do end", 0)

    def hangs() -> bool:
        with contextlib.suppress(ResponseError):
            return not redis.ping()
        return True

    endless = threading.Thread(target=hang)
    endless.start()
    await_that(hangs, "the script to hang")
    yield
    redis.script_kill()
    endless.join()


@contextlib.contextmanager
def paused(redis: Any) -> Iterator[None]:
    """A Redis that takes calls and answers none, for longer than redis.socket_timeout; it ends with the block alone."""
    pid = redis.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


AWAY_S = 3.0


@pytest.mark.parametrize("fault", [read_only, without_replicas, busy, paused])
def test_while_redis_cannot_be_asked_nothing_is_sent(fault: Callable[[Any], Any]) -> None:
    """Law 8: while it refuses to write, or hangs, nothing is sent and producers are told; then all go on, each once."""
    with start_fleet(RATES, workers=3, latency_ms=10, apns={"timeout": "8s"}) as fleet:
        enqueue(fleet)
        fleet.await_delivered(80)
        with (
            Redis.from_url(fleet.server.url) as redis,
            fleet.notifier(hasty=True) as notifier,
            contextlib.ExitStack() as faults,
        ):
            with fleet.stopped() as leased:
                faults.enter_context(fault(redis))
                begun_us = time.time_ns() // 1000
            with pytest.raises(RedisUnusableError):
                notifier.send(notification("u0", 0), job_id="meanwhile")
            with pytest.raises(LimiterUnreachableError):
                notifier.acquire("ann")
            time.sleep(max(0.0, AWAY_S - (time.time_ns() // 1000 - begun_us) / 1e6))  # nothing new may come
            ended_us = time.time_ns() // 1000
        broken, repeats, _ = judge(fleet)
        arrivals = fleet.arrivals()
        alive = [worker.returncode for worker in fleet.workers]
        told = [
            json.loads(line)["reason"]
            for log in fleet.logs()
            for line in log.splitlines()
            if '"limiter_unreachable"' in line
        ]

    assert told
    assert {reason.partition(" ")[0] for reason in told} == {"Redis"}, "it is told in words, not in Redis's own"
    meanwhile = {f"job-{a.data['n']}" for a in arrivals if begun_us <= a.at_us < ended_us}
    assert meanwhile <= leased, "nothing but what had its permit before"
    assert broken == []
    assert repeats == 0
    assert alive == [0, 0, 0], "no worker gave up"
