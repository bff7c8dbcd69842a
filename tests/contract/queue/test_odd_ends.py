"""Ends that meet a retry, a mute, a drop, or the same id once more: nothing is lost, and nothing is sent twice."""

import json
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from notifier.queue import backlogs, calls
from notifier.queue.calls import Job, Leased, State
from notifier.queue.retention import Retention
from notifier.rules.category import LANES, Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.rules.preferences import Preferences
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.contract.test_direct import TARGETS, S, Worker
from workers.loop.parts import RqJob

KEEP = Retention(3600 * S, 600 * S, S)
OFFERS = Category("offers", when_blocked="drop")
RULES = RuleTable(Policies(Policy(), categories={"default": Category("default"), "offers": OFFERS}))


def offer(name: str, **more: Any) -> Job:
    meta = json.dumps({"user": "ann", "category": "offers"}).encode()
    return replace(Job(name, "default", b"data", meta, targets=TARGETS, category="offers"), **more)


def settle(worker: Worker, job: Leased | RqJob, state: State, **more: Any) -> None:
    worker.end(job, state, keep=KEEP, **more)


def accepted(worker: Worker, job: Job) -> object:
    call = calls.enqueue([job], dedupe_for_us=3600 * S, stamp="now", clock=str(worker.now))
    return run(worker.redis, call)[0]


def test_what_its_device_refused_for_now_is_not_dropped(redis: Redis) -> None:
    """It was let go, so it waits for as long as the provider asks, though its category lets nothing wait."""
    worker = Worker(redis, rules=RULES)
    worker.accept(offer("one"))
    settle(worker, worker.take()[0], "backlog", detail=5 * S)
    worker.now += S
    assert worker.take() == []
    worker.now += 5 * S
    assert [leased.job_id for leased in worker.take()] == ["one"]


@pytest.mark.parametrize("state", ["later", "wait", "backlog"])
@pytest.mark.parametrize(("reached", "has_the_key"), [(True, "one"), (False, "two")])
def test_what_may_have_been_sent_keeps_its_dedupe_key(
    redis: Redis, state: State, *, reached: bool, has_the_key: str
) -> None:
    """It is cancelled before it is tried again. Its answer was lost, or was that the provider has not taken it."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, offer("one", dedupe="key"))
    settle(worker, worker.take()[0], state, reached=reached, detail=5 * S)
    assert run(redis, backlogs.cancel(["one"], KEEP, clock=str(worker.now))) == ["cancelled"]
    assert accepted(worker, offer("two", dedupe="key")) == has_the_key


@pytest.mark.parametrize(("reached", "has_the_key"), [(True, "one"), (False, "two")])
def test_what_ends_without_an_answer_keeps_its_dedupe_key(redis: Redis, *, reached: bool, has_the_key: str) -> None:
    """By its expiry, as its worker settles it, or by RQ's cancel in flight."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, offer("one", dedupe="key"))
    settle(worker, worker.take()[0], "failed", reached=reached, word="expired")
    assert accepted(worker, offer("two", dedupe="key")) == has_the_key
    redis.flushdb()
    accepted(worker, offer("one", dedupe="key"))
    leased = worker.take()[0]
    redis.hset("rq:job:one", "status", "canceled")
    settle(worker, leased, "later", reached=reached, detail=5 * S)
    assert accepted(worker, offer("two", dedupe="key")) == has_the_key


def test_what_may_have_been_sent_keeps_its_dedupe_key_when_it_is_requeued(redis: Redis) -> None:
    """It failed, for want of an answer; RQ's requeue begins it anew, and it is cancelled."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, offer("one", dedupe="key"))
    settle(worker, worker.take()[0], "failed", reached=True, word="failed", detail="why")
    redis.hset("rq:job:one", "status", "queued")
    redis.rpush("rq:queue:default", "one")
    settle(worker, worker.take()[0], "backlog", detail=5 * S)
    assert run(redis, backlogs.cancel(["one"], KEEP, clock=str(worker.now))) == ["cancelled"]
    assert accepted(worker, offer("two", dedupe="key")) == "one"


@pytest.mark.parametrize("by", ["a look", "the sweep", "us"])
def test_what_had_failed_is_cancelled_by_rq_and_counted(redis: Redis, by: str) -> None:
    """It was requeued; its second end is told as the first was."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, offer("one", dedupe="key"))
    settle(worker, worker.take()[0], "failed", word="failed", detail="why")
    redis.hset("rq:job:one", "status", "canceled")
    redis.zadd("rq:canceled:default", {"one": worker.now // S})
    if by == "a look":
        redis.rpush("rq:queue:default", "one")
        assert worker.take() == []
    elif by == "the sweep":
        assert run(redis, backlogs.sweep(LANES, KEEP, lease_us=S, clock=str(worker.now)))[0] == 1
    else:
        assert run(redis, backlogs.cancel(["one"], KEEP, clock=str(worker.now))) == ["cancelled"]
    assert redis.hmget("notifier:stats", "failed", "cancelled") == [b"1", b"1"]
    assert accepted(worker, offer("two", dedupe="key")) == "two"


def test_what_may_have_been_sent_is_not_dropped_as_untried(redis: Redis) -> None:
    """Its worker ended before the answer came: its own permit holds it back now, and its category lets nothing wait."""
    rules = RuleTable(Policies(Policy(gap_us=60 * S), categories={"default": Category("default"), "offers": OFFERS}))
    worker = Worker(redis, rules=rules)
    worker.accept(offer("one"))
    settle(worker, worker.take()[0], "backlog", reached=True)
    worker.now += S
    assert worker.take() == []
    worker.now += 60 * S
    assert [(leased.job_id, leased.dropped) for leased in worker.take()] == [("one", "")]


def test_what_no_device_has_is_dropped_by_a_mute(redis: Redis) -> None:
    """One device is gone, and the other failed: else it would wait for the end of the mute."""
    worker = Worker(redis, rules=RULES)
    plain = json.dumps({"user": "ann", "category": "default"}).encode()
    worker.accept(offer("one", meta=plain, category="default"), offer("two", meta=plain, category="default"))
    for leased, answer in zip(worker.take(), ("dead_token", "delivered"), strict=True):
        settle(worker, leased, "later", detail=S, answered=json.dumps({"0": answer}))
    redis.hset("notifier:preferences", "ann", Preferences.of({"mutes": [{"what": "drop"}]}).encode())
    worker.now += 2 * S
    assert [(leased.job_id, leased.dropped != "") for leased in worker.take()] == [("one", True)]


def test_what_is_muted_is_dropped_behind_what_a_device_has(redis: Redis) -> None:
    """Its rest steps aside, and goes once the mute is lifted; before its expiry it ends by that."""
    worker = Worker(redis, rules=RULES)
    plain = json.dumps({"user": "ann", "category": "default"}).encode()
    worker.accept(offer("rest", meta=plain, category="default"))
    settle(worker, worker.take()[0], "later", detail=S, answered=json.dumps({"0": "delivered"}))
    redis.hset("notifier:preferences", "ann", Preferences.of({"mutes": [{"what": "drop"}]}).encode())
    worker.accept(*(offer(name, meta=plain, category="default") for name in "abc"))
    for _ in range(3):
        worker.now += 60 * S
        for leased in worker.take():
            assert (leased.job_id in "abc", leased.dropped) == (True, "muted")
            settle(worker, leased, "dropped", word="dropped", detail="muted")
    assert redis.hget("notifier:stats", "dropped") == b"3"
    redis.delete("notifier:preferences")
    worker.now += 60 * S
    assert [(leased.job_id, leased.dropped) for leased in worker.take()] == [("rest", "")]


def test_what_was_delivered_long_ago_is_forgotten_where_nothing_more_is_settled(redis: Redis) -> None:
    """Its id may be used again once it is kept no more."""
    worker = Worker(redis, rules=RULES)
    worker.accept(offer("daily"))
    settle(worker, worker.take()[0], "delivered")
    worker.now += 599 * S
    run(redis, backlogs.sweep(LANES, KEEP, lease_us=S, clock=str(worker.now)))
    assert accepted(worker, offer("daily")) == "daily"
    assert redis.exists("rq:job:daily") == 0
    worker.now += 2 * S
    run(redis, backlogs.sweep(LANES, KEEP, lease_us=S, clock=str(worker.now)))
    assert accepted(worker, offer("daily")) == "daily"
    assert redis.exists("rq:job:daily") == 1


def test_moments_that_are_over_are_kept_no_longer(redis: Redis) -> None:
    """However many moments something was sent for, once all are over none is kept."""
    worker = Worker(redis, rules=RULES)
    worker.accept(*[offer(f"{n}", send_at_us=worker.now + n * S) for n in (1, 1, 2)])
    run(redis, backlogs.sweep(LANES, KEEP, lease_us=S, clock=str(worker.now + S)))
    assert redis.zcard("notifier:same_time") == 2
    run(redis, backlogs.sweep(LANES, KEEP, lease_us=S, clock=str(worker.now + 3 * S)))
    assert redis.exists("notifier:same_time") == 0


def rq_job(redis: Redis, name: str, lane: str = "default") -> None:
    """As RQ enqueues another function's job."""
    redis.hset(f"rq:job:{name}", mapping={"origin": lane, "status": "queued", "data": "x", "created_at": "now"})
    redis.rpush(f"rq:queue:{lane}", name)


def enqueued_again_in_flight(worker: Worker) -> RqJob:
    """Return a job of RQ, once its second call has left the queue."""
    rq_job(worker.redis, "sync")
    run(worker.redis, backlogs.steer([(job_id, "") for job_id, *_ in worker.pull().unread]))
    (leased,) = worker.pull().rq_jobs
    rq_job(worker.redis, "sync")
    assert worker.pull().rq_jobs == []
    return RqJob(*leased)


def test_a_job_of_rq_that_is_queued_twice_holds_up_nobody(redis: Redis) -> None:
    """While the first runs, the second is given to a worker like any other, and what stands behind it goes."""
    worker = Worker(redis, rules=RULES)
    rq_job(redis, "sync")
    redis.rpush("rq:queue:default", "sync")
    run(redis, backlogs.steer([(job_id, "") for job_id, *_ in worker.pull().unread]))
    settle(worker, RqJob(*worker.pull().rq_jobs[0]), "handed_to_rq")
    redis.rpush("rq:queue:default", "sync")
    worker.accept(offer("behind"))
    pulled = worker.pull()
    assert [leased.job_id for leased in pulled.leased] == ["behind"]
    assert [job_id for job_id, _ in pulled.rq_jobs] == ["sync"]
    assert pulled.unread == []


def test_a_job_of_rq_that_is_enqueued_again_before_it_is_handed_over_runs_again(redis: Redis) -> None:
    """The second call is not swallowed."""
    worker = Worker(redis, rules=RULES)
    settle(worker, enqueued_again_in_flight(worker), "handed_to_rq")
    assert redis.lrange("rq:queue:default", 0, -1) == [b"sync"]


@pytest.mark.parametrize(("meanwhile", "queued"), [("queued", [b"sync"]), ("canceled", [])])
def test_a_job_of_rq_that_is_enqueued_again_and_could_not_be_read_begins_anew(
    redis: Redis, meanwhile: str, queued: list[bytes]
) -> None:
    """The second call is not ended with the first; nor does a requeue of a later day run it twice."""
    worker = Worker(redis, rules=RULES)
    job = enqueued_again_in_flight(worker)
    redis.hset("rq:job:sync", "status", meanwhile)
    settle(worker, job, "failed", word="failed", detail="why")
    assert redis.lrange("rq:queue:default", 0, -1) == queued
    assert redis.hget("rq:job:sync", "push_again") is None


def test_what_is_enqueued_again_by_another_lane_leaves_nothing_that_is_started(redis: Redis) -> None:
    """RQ's registry of the first lane shows no send that is over."""
    worker = Worker(redis, rules=RULES)
    worker.accept(offer("one"))
    (leased,) = worker.take()
    redis.hset("rq:job:one", mapping={"origin": "urgent", "status": "queued"})
    redis.rpush("rq:queue:urgent", "one")
    settle(worker, leased, "delivered")
    assert redis.zcard("rq:wip:default") == 0
