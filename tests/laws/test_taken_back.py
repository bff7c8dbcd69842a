"""Law 3: what a refund opens is used at once: who waits is looked at, and the lane's leader is woken."""

import json

from redis import Redis

from notifier.producer.permits import UserPermit
from notifier.queue import calls, leaders
from notifier.queue.calls import Job, Pulled
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.asking import InRedis

S = 1_000_000
NOW = 1_700_000_000 * S
URGENT = ("urgent",)
NEWS = Category("news", "urgent", Policy((Window(1, interval_us=40 * S),)))
POLICIES = Policies(Policy((Window(1, interval_us=20 * S),)), categories={"news": NEWS})
RULES = RuleTable(POLICIES)


def look(redis: Redis, now: int) -> Pulled:
    """What the idle leader of the lane does when it is woken."""
    run(redis, leaders.lead("w", URGENT, lapse_ms=60_000))
    worker = calls.Worker(name="w", lanes=URGENT, lease_us=30 * S, leads=True, clock=str(now))
    return run(redis, calls.pull(worker, calls.Room(9), RULES))


def wait_behind_a_permit(redis: Redis) -> tuple[InRedis, UserPermit]:
    """One of ann's waits, because the right to send to her was taken by another program."""
    limiter = InRedis(redis, clock=str(NOW))
    permit = limiter.acquire("ann", POLICIES.rules("ann", "news"))
    assert isinstance(permit, UserPermit)
    job = Job("job", "urgent", b"data", json.dumps({"user": "ann", "category": "news"}).encode())
    run(redis, calls.enqueue([job], dedupe_for_us=S, stamp="", clock=str(NOW)))
    assert look(redis, NOW).leased == []
    assert look(redis, NOW + S).idle == 0
    return limiter, permit


def test_who_waits_goes_when_a_permit_is_taken_back(redis: Redis) -> None:
    """19 s before the window would have opened the idle leader of the lane is woken, and sends."""
    limiter, permit = wait_behind_a_permit(redis)
    limiter.clock = str(NOW + S)
    assert limiter.refund(permit)
    assert redis.lpop(leaders.leader_key("wake", URGENT)) == str(NOW + S).encode()
    assert [leased.job_id for leased in look(redis, NOW + S).leased] == ["job"]


def test_a_refund_that_finds_nothing_wakes_nobody(redis: Redis) -> None:
    """A permit that was refunded before opens nothing; and who has nothing waiting is not noted."""
    limiter, permit = wait_behind_a_permit(redis)
    assert limiter.refund(permit)
    look(redis, NOW + S)
    redis.delete(leaders.leader_key("wake", URGENT))
    assert not limiter.refund(permit)
    assert not redis.exists(leaders.leader_key("wake", URGENT))
    other = limiter.acquire("bob", Policy((Window(1, interval_us=S),)))
    assert isinstance(other, UserPermit)
    assert limiter.refund(other)
    assert redis.zscore("notifier:wakeups:urgent", "bob") is None
    assert not redis.exists(leaders.leader_key("wake", URGENT))
