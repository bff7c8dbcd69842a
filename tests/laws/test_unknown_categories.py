"""Law 9: plain producers may invent categories.

What the configuration does not know is `default`, in its backlog too.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq.worker import SimpleWorker

from notifier.queue import backlogs, calls
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.store.connection import time_us
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.consistency import audit
from tests.harness.support import Simulators, client_of, eventually, plain, queue, worker, write_config
from tests.harness.take import enter, take
from workers.loop.parts import Tuning
from workers.rq.functions import AllowedFunctions
from workers.rq.jobs import ForkedRqJobs

COUNT = 60
CATEGORIES = {"default": {"lane": "default", "windows": ["20/1h"]}, "chat": {"lane": "urgent"}}


def deliver(redis: Redis, title: str, category: str, *, in_data: bool) -> Any:
    kwargs = plain("ann", title, **({"category": category} if in_data else {}))
    return queue(redis).enqueue("notifier.deliver", kwargs=kwargs, meta={"user": "ann", "category": category, "x": [1]})


def test_invented_categories_share_the_backlog_and_the_rules_of_default(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, simulators: Simulators
) -> None:
    """Sixty in one backlog: in order, by the windows of `default` for all together; a known category is apart."""
    config = write_config(tmp_path, redis_server.url, simulators.providers(), categories=CATEGORIES)
    with worker(config) as running, client_of(config) as client:
        running.ready(redis)
        jobs = [deliver(redis, f"made-up-{n:02}", f"made-up-{n % 31}", in_data=n % 2 == 0) for n in range(COUNT)]
        known = deliver(redis, "known", "chat", in_data=True)
        eventually(lambda: len(simulators.titles("made-up-")) == 20, "what the windows of default admit")
        eventually(lambda: simulators.titles("known"), "the one of a category that is known")
        eventually(lambda: client.zcard("notifier:backlog:{ann}:default") == COUNT - 20, "the rest in one backlog")
        assert simulators.titles("made-up-") == [f"made-up-{n:02}" for n in range(20)]
        assert client.keys("notifier:backlog:*") == [b"notifier:backlog:{ann}:default"]
        assert client.zcard("notifier:sent:{ann}:default") == 20
        waits = jobs[-1]
        waits.refresh()
        assert waits.meta == {"user": "ann", "category": "default", "x": [1]}
        assert known.id


def test_what_a_worker_read_long_ago_is_not_said_of_a_job_that_has_gone_on(redis: Redis) -> None:
    """Law 1: a worker of older rules, stopped while it read a job, does not take it out of its category's rules."""

    def pull(*known: str) -> calls.Pulled:
        return enter(redis, calls.Worker(lanes=["default"], lease_us=10_000_000), calls.Room(9), *known)

    job = queue(redis).enqueue("notifier.deliver", kwargs={"user": "ann"}, meta={"user": "ann", "category": "sale"})
    (unread,) = pull().unread  # by older rules
    late = backlogs.steer([(unread.job_id, '{"user": "ann", "category": "default"}')])
    assert pull("sale").taken == 1
    run(redis, late)
    job.refresh()
    assert job.meta == {"user": "ann", "category": "sale"}
    assert redis.zrange("notifier:backlog:{ann}:sale", 0, -1) == [job.id.encode()]


def test_whom_an_earlier_job_was_for_is_not_said_of_the_next_of_its_id(redis: Redis) -> None:
    """A worker was asked for its devices, and Redis was away; meanwhile it ended, and its id was used again."""
    reader, rules = calls.Worker(lanes=["default"], lease_us=10_000_000), RuleTable(Policies())

    def pull(targets: dict[str, str]) -> calls.Pulled:
        run(redis, backlogs.aim(targets))
        return run(redis, calls.pull(reader, calls.Room(9, {"fcm": 9}), rules))

    def enqueue() -> None:
        kwargs, meta = {"user": "ann"}, {"user": "ann", "category": "default"}
        queue(redis).enqueue("notifier.deliver", kwargs=kwargs, meta=meta, job_id="used")

    enqueue()
    assert [job_id for job_id, *_ in pull({}).asked] == ["used"]
    redis.delete("rq:job:used", "notifier:backlog:{ann}:default", "notifier:backlogs:{ann}")
    enqueue()
    assert [job_id for job_id, *_ in pull({"used": "- fcm:n|earlier"}).asked] == ["used"]
    assert [leased.job_id for leased in pull({"used": "- fcm:n|now"}).leased] == ["used"]
    assert redis.hget("rq:job:used", "push_targets") == b"- fcm:n|now"


def test_one_without_data_is_read_as_others_are(redis: Redis) -> None:
    """Law 2: its worker reports that it says nothing. It does not wait, looked at again and again, before the next."""
    fields = {"origin": "default", "status": "queued", "meta": '{"user": "ann", "category": "default"}'}
    redis.hset("rq:job:empty", mapping=fields)
    redis.rpush("rq:queue:default", "empty")
    reader = calls.Worker(lanes=["default"], lease_us=10_000_000)
    pulled = take(redis, reader, calls.Room(9, {"fcm": 9}), RuleTable(Policies()))
    assert [leased.job_id for leased in pulled.leased] == ["empty"]


@pytest.mark.parametrize(("data", "waits"), [(b"x", True), (b"x" * 300_000, False)], ids=["its time", "large"])
def test_what_a_worker_reads_under_a_lease_is_nobody_else_s(redis: Redis, data: bytes, waits: bool) -> None:
    """Law 2: its category is unknown, so a worker reads it under a lease: RQ's upkeep leaves it there.

    Where that worker dies, another reads it.
    """
    meta = json.dumps({"user": "ann", "category": "gone"}).encode()
    lane, at_us = queue(redis), time_us(redis) - 1_000_000
    job = calls.Job("read", lane.name, data, meta, send_at_us=at_us if waits else None)
    run(redis, calls.enqueue([job], dedupe_for_us=1, stamp="", clock=str(at_us - 1)))
    for clock in (at_us + 1_000_000, at_us + 60_000_000):
        reader = calls.Worker(lanes=[lane.name], lease_us=10_000_000, clock=str(clock))
        pulled = enter(redis, reader, calls.Room(9), "known")
        assert ([job_id for job_id, _ in pulled.rq_jobs], pulled.orphans) == (["read"], [])

        tuning = Tuning(batch=1, in_flight=1, lease_us=1, timeout_us=1, grace_us=1)
        ForkedRqJobs(SimpleWorker([lane], connection=redis), AllowedFunctions([]), tuning).release_scheduled()
        assert lane.job_ids == []
        assert audit(redis) == []


def test_what_is_read_again_when_its_worker_died_had_a_place_before(redis: Redis) -> None:
    """Law 2: somebody wrote over the meta of one that waits for its next try, so a worker reads it, and dies."""
    first, lane, rules = time_us(redis), queue(redis), RuleTable(Policies())

    def pull(after_us: int) -> calls.Pulled:
        reader = calls.Worker(lanes=[lane.name], lease_us=10_000_000, clock=str(first + after_us))
        return run(redis, calls.pull(reader, calls.Room(9), rules))

    job = calls.Job("tried", lane.name, b"x", b'{"user": "ann", "category": "default"}', targets="- fcm:n|one")
    run(redis, calls.enqueue([job], dedupe_for_us=1, stamp="", clock=str(first)))
    (leased,) = pull(0).leased
    again = calls.Settlement("tried", leased.permit, "ann", "default", False, "later", "retried", detail="1000000")
    run(redis, calls.settle([again], rules, calls.Worker(clock=str(first))))
    redis.hset("rq:job:tried", "meta", "written over")
    for after_us in (2_000_000, 60_000_000, 120_000_000):
        assert [job_id for job_id, _ in pull(after_us).rq_jobs] == ["tried"]
    assert redis.hget("notifier:stats", "superseded") is None
