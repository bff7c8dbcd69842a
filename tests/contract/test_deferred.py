"""What a provider did not take for now waits at the head of its backlog, and those behind it wait behind it."""

from dataclasses import replace

from redis import Redis

from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.rule_table import RuleTable
from tests.contract.test_direct import CATEGORIES, NOW, S, Worker, job

FREE = RuleTable(Policies(Policy(), categories=CATEGORIES))


def taken(worker: Worker) -> list[str]:
    """What is leased now."""
    return [leased.job_id for leased in worker.take()]


def test_it_holds_those_behind_it_until_its_time(redis: Redis) -> None:
    """For a second nothing of the backlog goes, also what comes anew; then all go, in order."""
    worker = Worker(redis, rules=FREE)
    worker.accept(job("one"), job("two"))
    first, second = worker.take()
    worker.end(second, "backlog", word="returned")
    worker.end(first, "backlog", word="returned", detail=S)
    worker.accept(job("three"), job("elsewhere", category="alarm"))
    assert taken(worker) == ["elsewhere"], "another category waits for none of them"
    worker.now = NOW + S - 1
    assert taken(worker) == []
    assert worker.pull().next_us == NOW + S
    worker.now = NOW + S
    assert taken(worker) == ["one", "two", "three"]


def test_it_expires_where_it_waits(redis: Redis) -> None:
    """Its wait is no longer than its life; then the others go."""
    worker = Worker(redis, rules=FREE)
    worker.accept(replace(job("one"), expires_in_us=S // 2), job("two"))
    first, second = worker.take()
    worker.end(second, "backlog", word="returned")
    worker.end(first, "backlog", word="returned", detail=S)
    assert taken(worker) == []
    worker.now = NOW + S // 2
    assert [(each.job_id, each.left_us == 0) for each in worker.take()] == [
        ("one", True),
        ("two", False),
    ]
