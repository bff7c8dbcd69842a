"""Which ends make a dedupe key free: those before anything was sent."""

import json
from dataclasses import replace

import pytest
from redis import Redis

from notifier.queue import backlogs, calls
from notifier.queue.calls import Job
from notifier.queue.retention import Retention
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.contract.test_direct import TARGETS, S, Worker

SCORE = Category("score", policy=Policy(gap_us=60 * S), when_blocked="collapse")
RULES = RuleTable(Policies(Policy(), categories={"default": Category("default"), "score": SCORE}))


def score(name: str) -> Job:
    meta = json.dumps({"user": "ann", "category": "score", "collapse_id": "game"}).encode()
    return Job(name, "default", b"data", meta, targets=TARGETS, category="score")


def accepted(worker: Worker, job: Job) -> str:
    call = calls.enqueue([job], dedupe_for_us=3600 * S, stamp="now", clock=str(worker.now))
    (answer,) = run(worker.redis, call)
    assert isinstance(answer, str)
    return answer


def test_what_was_superseded_stands_in_no_ones_way(redis: Redis) -> None:
    """It reached nobody; what took its place is another's, under another key or none."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, score("sent"))
    assert [leased.job_id for leased in worker.take()] == ["sent"]
    assert accepted(worker, replace(score("old"), dedupe="key")) == "old"
    worker.take()
    assert accepted(worker, replace(score("again"), dedupe="key")) == "old", "it waits"
    accepted(worker, score("newer"))
    worker.take()
    assert redis.exists("rq:job:old") == 0
    assert accepted(worker, replace(score("again"), dedupe="key")) == "again"


@pytest.mark.parametrize("word", ["expired", "rejected", "failed"])
def test_what_a_worker_ended(redis: Redis, word: str) -> None:
    """A provider's refusal is an answer, and what failed may have reached somebody: only an expiry makes it free."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, replace(score("first"), dedupe="key"))
    (leased,) = worker.take()
    worker.end(leased, "failed", word=word, detail="why", keep=Retention(0, 0, 0))
    assert accepted(worker, replace(score("second"), dedupe="key")) == ("second" if word == "expired" else "first")


@pytest.mark.parametrize("field", ["push_sent", "push_crashes"])
def test_what_may_have_reached_its_user_keeps_its_key(redis: Redis, field: str) -> None:
    """It was sent to some effect, or a worker died with it: whoever repeats the call gets this one."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, replace(score("first"), dedupe="key"))
    redis.hset("rq:job:first", field, "1")
    assert run(redis, backlogs.cancel(["first"], Retention(S), clock=str(worker.now))) == ["cancelled"]
    assert accepted(worker, replace(score("second"), dedupe="key")) == "first"


def test_what_was_cancelled(redis: Redis) -> None:
    """However short what has ended is kept; and a key that another has by now stays the other's."""
    worker = Worker(redis, rules=RULES)
    accepted(worker, replace(score("first"), dedupe="key"))
    assert run(redis, backlogs.cancel(["first"], Retention(0), clock=str(worker.now))) == ["cancelled"]
    assert accepted(worker, replace(score("second"), dedupe="key")) == "second"
    accepted(worker, score("third"))
    redis.hset("rq:job:third", "push_dedupe", "key")
    run(redis, backlogs.cancel(["third"], Retention(0), clock=str(worker.now)))
    assert accepted(worker, replace(score("fourth"), dedupe="key")) == "second"
