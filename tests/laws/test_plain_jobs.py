"""Laws 2, 4 and 9 for plain producers that leave out the meta: jobs are read in order, and nobody waits for that."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Queue

from notifier.notification import Device
from notifier.queue import backlogs, calls
from notifier.queue.pauses import pause
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.support import (
    Simulators,
    apns,
    ends,
    eventually,
    fcm,
    note,
    notifier,
    plain,
    queue,
    state,
    worker,
    write_config,
)
from tests.harness.take import enter, take

COUNT = 24
SLOW_MS = 12_000
NAMED = {"user": "ann", "category": "default"}
WORKER = {"lease": "40s", "grace": "30s"}


def patient(simulators: Simulators) -> dict[str, Any]:
    """The providers, with time for an answer that comes late."""
    return {name: {**provider, "timeout": "20s"} for name, provider in simulators.providers().items()}


def url_of(redis: Redis) -> str:
    """Where a client's server listens."""
    told = redis.connection_pool.connection_kwargs
    return f"redis://{told['host']}:{told['port']}/{told.get('db') or 0}"


def deliver(lane: Queue, user: str, title: str, meta: Mapping[str, Any] | None = None) -> str:
    return str(lane.enqueue("notifier.deliver", kwargs=plain(user, title), meta=meta).id)


@pytest.mark.parametrize(("workers", "first"), [(1, "jobs"), (1, "workers"), (3, "jobs"), (3, "workers")])
def test_jobs_without_meta_go_in_order(
    redis: Redis, tmp_path: Path, simulators: Simulators, workers: int, first: str
) -> None:
    """Law 4: as they were queued, whoever reads them, into idle workers and before any is there."""
    titles = [f"plain-{n:02}" for n in range(COUNT)]
    with ExitStack() as stack:
        config = write_config(tmp_path, url_of(redis), simulators.providers(), user={"gap": "5ms"})
        fleet = [worker(config, name=f"w{n}") for n in range(workers)]
        if first == "workers":
            for one in fleet:
                stack.enter_context(one).ready(redis)
        for n, title in enumerate(titles):
            meta = NAMED if n % 5 == 4 else None  # some give it
            deliver(queue(redis), "ann", title, meta)
        if first == "jobs":
            for one in fleet:
                stack.enter_context(one)
        eventually(lambda: len(simulators.titles("plain-")) >= COUNT, "all of them")
    assert simulators.titles("plain-") == titles


def test_nothing_in_flight_is_waited_for_to_read_a_job(redis: Redis, tmp_path: Path, simulators: Simulators) -> None:
    """Law 9: while one send gets its answer late, its worker reads a plain job, and sends it and somebody else's."""
    slow = simulators.delay(apns("slow"), SLOW_MS)
    config = write_config(tmp_path, url_of(redis), patient(simulators), worker=WORKER)
    with worker(config) as running, notifier(config) as producer:
        running.ready(redis)
        in_flight = producer.send(note("slow", "slow", slow))
        eventually(lambda: simulators.arrived("slow"), "the slow one on its way")
        plain = deliver(queue(redis), "bob", "plain")
        other = producer.send(note("bystander", "other"))
        ends(producer, plain, "delivered")
        ends(producer, other, "delivered")
        assert state(producer, in_flight) == "sending"


def test_what_is_to_be_read_keeps_its_place_and_is_read_once(redis: Redis) -> None:
    """It stays at the head of its queue, and who comes after it behind it, until it is read; nothing is read twice."""
    lane = queue(redis)
    names = [deliver(lane, "ann", f"{n}", NAMED if n in {0, 3} else None) for n in range(5)]
    rubbish = lane.enqueue("math.factorial", 3).id

    def pull() -> calls.Pulled:
        worker = calls.Worker(name="w", lanes=["default"], lease_us=10_000_000)
        return enter(redis, worker, calls.Room(9))

    def waiting() -> list[str]:
        return [job_id.decode() for job_id in redis.lrange("rq:queue:default", 0, -1)]

    pulled = pull()
    assert pulled.taken == 1
    assert [job.job_id.decode() for job in pulled.unread] == [names[1], names[2], names[4], rubbish]
    assert waiting() == [*names[1:], rubbish]
    assert pulled.rq_jobs == []
    metas = [(job.job_id, "" if job.job_id.decode() == rubbish else json.dumps(NAMED)) for job in pulled.unread]
    run(redis, backlogs.steer([*metas, (b"deleted", json.dumps(NAMED))]))
    assert not redis.exists("rq:job:deleted")
    pulled = pull()
    assert pulled.unread == []
    assert waiting() == []
    assert redis.zrange("notifier:backlog:{ann}:default", 0, -1) == [name.encode() for name in names]
    assert [job_id for job_id, _ in pulled.rq_jobs] == [rubbish]


def test_what_its_reader_said_nothing_of_is_read_under_a_lease(redis: Redis) -> None:
    """Law 2: a job that kills whoever reads it keeps its queue for one lease. Then each death counts against it."""
    poison = deliver(queue(redis), "ann", "poison").encode()
    behind = deliver(queue(redis), "bob", "behind").encode()

    def pull(at_s: int) -> calls.Pulled:
        at = f"{(1_700_000_000 + at_s) * 1_000_000}"
        return enter(redis, calls.Worker(name="w", lanes=["default"], lease_us=10_000_000, clock=at), calls.Room(9))

    for at_s in (0, 1, 10):  # whoever comes meanwhile reads it too: the first may only have been slow
        assert [job.job_id for job in pull(at_s).unread] == [poison, behind]
    run(redis, backlogs.steer([(behind, '{"user": "bob", "category": "default"}')]))
    pulled = pull(11)
    assert (pulled.unread, pulled.taken) == ([], 2)
    assert [job_id for job_id, _ in pulled.rq_jobs] == [poison.decode()]
    assert [job_id.decode() for job_id in redis.zrange("notifier:backlog:{bob}:default", 0, -1)] == [behind.decode()]
    pull(22)
    assert redis.hget(f"rq:job:{poison.decode()}", "push_crashes") == b"1"


def test_what_was_read_goes_though_nobody_would_look_at_its_lane(redis: Redis) -> None:
    """Law 3: the one before it waited for a paused route, without a wake-up, and RQ deleted that one.

    It is read as its user is looked at for another lane.
    """
    rules = RuleTable(Policies(categories={"news": Category("news", lane="bulk"), "chat": Category("chat", "urgent")}))
    reader = calls.Worker(lanes=["urgent", "bulk"], lease_us=10_000_000)

    def enqueue(device: Device) -> Any:
        meta = {"user": "ann", "category": "news"}
        return queue(redis, "bulk").enqueue("notifier.deliver", kwargs=plain("ann", "x", device), meta=meta)

    def go() -> list[str]:
        return [leased.job_id for leased in take(redis, reader, calls.Room(9), rules).leased]

    run(redis, pause("fcm", "anna", "", 0))
    before = enqueue(fcm("ann"))
    assert go() == []
    job = enqueue(apns("ann"))
    assert go() == []
    before.delete()
    chat = calls.Job("chat", "urgent", b"x", b'{"user": "ann", "category": "chat"}', targets="- fcm:n|one")
    run(redis, calls.enqueue([chat], dedupe_for_us=1, stamp=""))
    assert go() == [job.id]
