"""A fleet over 64 partitions of a Redis Cluster: what it costs beside one Redis, and how long a fault stops it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from redis import Redis
from redis.crc import key_slot

from benchmarks.harness import Figure, at_most, median
from benchmarks.idle import to_wire_us
from notifier.errors import NotifierError
from notifier.rules.verify import percentile
from notifier.store.tags import tag_of
from tests.faults.cluster import NODE_TIMEOUT_MS, RedisCluster
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import await_that, cpu_s

COUNT, WARM = 64, 500
RATES = {"redis": {"partitions": COUNT}}


def measure(*, quick: bool) -> list[Figure]:
    """See the module."""
    return [*_costs(quick=quick), *_faults()]


def _costs(*, quick: bool) -> Iterator[Figure]:
    jobs, rounds = (2_000, 1) if quick else (10_000, 3)
    with start_fleet({}, workers=1) as fleet:
        yield from _idle(fleet, [fleet.redis], 20 if quick else 200, "one idle Redis")
        sent = _sent_s(fleet, jobs, rounds)
        alone, calls = _of_a_job(fleet, [fleet.redis], jobs * rounds)
    yield Figure("one Redis: Redis CPU", alone, "µs a job")
    yield Figure("one Redis: jobs for each call of a script", 1 / calls, "")
    for primaries in (1, 2, 3):
        with _over(RedisCluster(primaries)) as (cluster, fleet), contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(node.client()) for node in cluster.nodes[:primaries]]
            if primaries == 3:  # noqa: PLR2004 - all of them
                yield from _idle(fleet, nodes, 20 if quick else 200, "64 idle partitions")
            took = _sent_s(fleet, jobs, rounds)
            us, calls = _of_a_job(fleet, nodes, jobs * rounds)
        yield Figure(f"{primaries} primaries: Redis CPU, to one Redis", us / alone, "x", at_most(1.05))
        yield Figure(f"{primaries} primaries: jobs for each call of a script", 1 / calls, "")
    yield Figure(f"send_many of {jobs:,} over 64 partitions, to one Redis", took / sent, "x", at_most(1.2))


@contextlib.contextmanager
def _over(made: RedisCluster) -> Iterator[tuple[RedisCluster, Fleet]]:
    with made as cluster, start_fleet(RATES, workers=1, redis_server=contextlib.nullcontext(cluster)) as fleet:
        yield cluster, fleet


def _sent_s(fleet: Fleet, jobs: int, rounds: int) -> float:
    """The median of what `send_many` takes, while no worker works. The scripts are known by then."""
    with fleet.notifier() as notifier:
        notifier.send_many(notification(f"w{n}", n) for n in range(WARM))
    await_that(lambda: _arrived(fleet) >= WARM, "the first jobs", 60)
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(30)
    found = []
    with fleet.notifier() as notifier:
        notifier.routes()  # connections
        for of in range(rounds):
            begun = time.monotonic()
            notifier.send_many(notification(f"u{n}", n) for n in range(of * jobs, (of + 1) * jobs))
            found.append(time.monotonic() - begun)
    return median(found)


def _of_a_job(fleet: Fleet, nodes: list[Redis], jobs: int) -> tuple[float, float]:
    """What the nodes spend on each job that a worker sends, in µs, and how many calls of scripts."""
    arrived, calls, before = _arrived(fleet), _calls(nodes), _cpu_s(nodes)
    fleet.start_worker()
    await_that(lambda: _arrived(fleet) >= arrived + jobs, "all jobs", 600, 0.5)
    return (_cpu_s(nodes) - before) / jobs * 1e6, (_calls(nodes) - calls) / jobs


def _arrived(fleet: Fleet) -> int:
    # Not by asking Redis: to ask 64 partitions again and again costs it as much as many a job.
    return fleet.wire_log.read_bytes().count(b"\n") if fleet.wire_log.exists() else 0


def _calls(nodes: list[Redis]) -> int:
    told: list[Any] = [node.info("commandstats") for node in nodes]
    return sum(each["cmdstat_evalsha"]["calls"] for each in told)


def _cpu_s(nodes: list[Redis]) -> float:
    return sum(cpu_s(node) for node in nodes)


def _idle(fleet: Fleet, nodes: list[Redis], jobs: int, said: str) -> Iterator[Figure]:
    """What a fleet costs while nothing happens, and how soon it wakes."""
    time.sleep(10)  # the engines come to rest
    worker, before, begun = fleet.workers[0].pid, _cpu_s(nodes), time.monotonic()
    spent = _process_s(worker)
    time.sleep(15)
    lasted = time.monotonic() - begun
    yield Figure(f"{said}: worker", 100 * (_process_s(worker) - spent) / lasted, "% of a core", at_most(1))
    yield Figure(f"{said}: a Redis", 100 * (_cpu_s(nodes) - before) / lasted / len(nodes), "% of a core", at_most(1))
    pages = int(Path(f"/proc/{worker}/statm").read_text(encoding="ascii").split()[1])
    yield Figure(f"{said}: worker", pages * 4096 / 1e6, "MB", at_most(100))
    with fleet.notifier() as notifier:
        notifier.send(notification("first", jobs))  # loads what this process and the worker need, and connects
        fleet.await_ended(1)
        waits = to_wire_us(fleet, notifier, jobs)
    fleet.await_ended(1 + jobs)
    yield Figure(f"{said}: enqueue to wire, p99", percentile(waits, 0.99) / 1_000, "ms", at_most(15))


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _faults() -> Iterator[Figure]:
    """For how long nothing arrives of a partition to which something is sent all the time."""
    slot = key_slot(tag_of(0, COUNT).encode())
    with _over(RedisCluster()) as (cluster, fleet):
        user = next(f"u{n}" for n in range(10_000) if fleet.partitions.of_user(f"u{n}").number == 0)
        stood, took = _stands(fleet, user, lambda: cluster.move(slot, cluster.others(slot)[0]))
        yield Figure("a slot moves: its partition stands, beyond the move", max(0.0, stood - took), "s", at_most(2))
        stood, _ = _stands(fleet, user, lambda: cluster.fail_over(slot))
        yield Figure("a planned failover: a partition stands", stood, "s", at_most(1.5))
        await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "all in step", 60)
        stood, took = _stands(fleet, user, lambda: cluster.await_takeover(slot, cluster.kill_owner(slot)))
        note = f"node timeout {NODE_TIMEOUT_MS / 1_000:g} s, takeover after {took:.1f} s"
        beyond = max(0.0, stood - took)
        yield Figure("a primary is killed: a partition stands, beyond the takeover", beyond, "s", at_most(3), note)


def _stands(fleet: Fleet, user: str, happens: Callable[[], object]) -> tuple[float, float]:
    """The longest time without an arrival while this happens, and how long it took."""
    over, known = threading.Event(), len(fleet.arrivals())

    def send() -> None:
        n = known
        with fleet.notifier() as notifier:
            while not over.is_set():
                with contextlib.suppress(NotifierError):
                    notifier.send(notification(user, n))
                n += 1
                over.wait(0.02)

    thread = threading.Thread(target=send)
    thread.start()
    await_that(lambda: len(fleet.arrivals()) > known + 20, "arrivals", 30)
    begun = time.monotonic()
    happens()
    took, since = time.monotonic() - begun, len(fleet.arrivals())
    await_that(lambda: len(fleet.arrivals()) > since + 50, "arrivals again", 60)
    over.set()
    thread.join()
    times = [arrival.at_us for arrival in fleet.arrivals()[known:]]
    return max(after - before for before, after in pairwise(times)) / 1e6, took
