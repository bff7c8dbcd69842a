"""Law 9: one user's many categories do not block Redis: what a look costs is bounded, and all of it goes in the end."""

import json
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from notifier.producer.permits import UserPermit
from notifier.queue import calls
from notifier.queue.calls import Job, Settlement
from notifier.queue.retention import Retention
from notifier.rules.category import LANES, Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import Call, run
from notifier.scripts.rule_table import RuleTable
from tests.harness.asking import InRedis
from tests.harness.take import enter

S = 1_000_000
NOW = 1_700_000_000 * S
BATCH = 50
MAX_COMMANDS = 40 * BATCH
COUNT = 1_000
PASS = Category("pass", "bulk", bypass=True)


def configured(count: int, policy: Policy, user: Policy) -> Policies:
    """So many categories in two lanes, a few of them urgent."""
    categories = {f"c{n}": Category(f"c{n}", "urgent" if n < 3 else "bulk", policy) for n in range(count)}
    return Policies(user, categories=categories)


class Waiting:
    """One user who waits in each of so many categories, and one worker."""

    def __init__(self, redis: Redis, policies: Policies, each: int = 1) -> None:
        self.redis, self.now = redis, NOW
        self.rules = RuleTable(policies)
        categories = [c for c in policies.categories.values() if c.name != "default"]
        jobs = [
            Job(f"{c.name}-{n}", c.lane, b"data", json.dumps({"user": "ann", "category": c.name}).encode())
            for n in range(each)
            for c in categories
        ]
        for start in range(0, len(jobs), 500):
            some = jobs[start : start + 500]
            run(redis, calls.enqueue(some, dedupe_for_us=S, stamp="", clock=str(NOW)))
        worker = calls.Worker(name="w", lanes=LANES, lease_us=30 * S, clock=str(NOW))
        while enter(redis, worker, calls.Room(500), *policies.categories).taken:
            pass
        self.sent: list[tuple[int, str]] = []
        self.looks, self.lanes = 0, LANES

    def counted(self, call: Call[Any]) -> Any:
        """Run a call, which must not run more commands than a batch is worth."""
        self.redis.config_resetstat()
        reply = run(self.redis, call)
        ran: Any = self.redis.info("commandstats")
        assert sum(entry["calls"] for entry in ran.values()) <= MAX_COMMANDS
        return reply

    def look(self) -> calls.Pulled:
        worker = calls.Worker(name="w", lanes=self.lanes, lease_us=30 * S, clock=str(self.now))
        pulled: calls.Pulled = self.counted(calls.pull(worker, calls.Room(BATCH), self.rules))
        leased = pulled.leased
        self.looks += bool(leased or pulled.idle)
        self.sent += [(self.now, one.job_id) for one in leased]
        done = [
            Settlement(one.job_id, one.permit, one.user, one.category, reached=True, state="delivered")
            for one in leased
        ]
        if done:
            keep = Retention(S, S, S)
            self.counted(calls.settle(done, self.rules, calls.Worker(name="w", keep=keep, clock=str(self.now))))
        return pulled

    def drain(self, count: int) -> None:
        """Look whenever the user is due, until so many have gone."""
        while len(self.sent) < count:
            pulled = self.look()
            if not pulled.leased:
                assert pulled.next_us is not None
                self.now = pulled.next_us


@pytest.mark.parametrize("user", [Policy(), Policy(gap_us=S)], ids=["free", "gap"])
@pytest.mark.parametrize("policy", [Policy(), Policy((Window(1, interval_us=60 * S),))], ids=["plain", "window"])
def test_a_look_at_a_thousand_categories_is_bounded(redis: Redis, user: Policy, policy: Policy) -> None:
    """Neither a look nor the end of a send goes through all that waits, whichever rules hold; refunds do not either."""
    waiting = Waiting(redis, configured(COUNT, policy, user), each=2)
    for _ in range(5):
        redis.zadd("notifier:wakeups:bulk", {"ann": waiting.now})
        assert waiting.look().leased
        waiting.now += 2 * S
    limiter = InRedis(redis, clock=str(waiting.now))
    permit = limiter.acquire("ann", Policy((Window(10**6, interval_us=60 * S),)))
    assert isinstance(permit, UserPermit)
    redis.config_resetstat()
    assert limiter.refund(permit)
    ran: Any = redis.info("commandstats")
    assert sum(entry["calls"] for entry in ran.values()) <= 30


def test_all_of_them_go_each_at_its_time(redis: Redis) -> None:
    """Under a gap each goes when the gap is over, one look for one message, the urgent before the rest."""
    waiting = Waiting(redis, configured(120, Policy(), Policy(gap_us=S)))
    waiting.drain(120)
    assert [at - waiting.sent[0][0] for at, _ in waiting.sent] == [n * S for n in range(120)]
    assert waiting.looks <= 1.2 * 120
    urgent = [n for n, (_, job_id) in enumerate(waiting.sent) if job_id in {"c0-0", "c1-0", "c2-0"}]
    assert max(urgent) <= 3


def test_a_worker_of_one_lane_leaves_the_others(redis: Redis) -> None:
    """The parts that it looks at are of its lane; and what is in the other one goes to who serves that."""
    waiting = Waiting(redis, configured(120, Policy(), Policy(gap_us=S)))
    waiting.lanes = ("bulk",)
    waiting.drain(117)
    assert not {job_id for _, job_id in waiting.sent} & {"c0-0", "c1-0", "c2-0"}
    waiting.lanes = ("urgent",)
    waiting.drain(120)


def test_what_bypasses_waits_for_no_part(redis: Redis) -> None:
    """Law 3: it is in the last part, and goes though the rules of its user hold all else back."""
    many = configured(120, Policy(), Policy(gap_us=60 * S))
    waiting = Waiting(redis, Policies(many.everyone, categories={**many.categories, "pass": PASS}))
    waiting.drain(2)
    assert waiting.sent[1] == (NOW, "pass-0")


def test_what_its_own_rules_hold_back_goes_when_they_open(redis: Redis) -> None:
    """One a minute of each of 119 categories, and of one in five seconds: the second of each goes then, in any part."""
    many = configured(120, Policy((Window(1, interval_us=60 * S),)), Policy())
    soon = Category("c60", "bulk", Policy((Window(1, interval_us=5 * S),)))
    waiting = Waiting(redis, Policies(many.everyone, categories={**many.categories, "c60": soon}), each=2)
    waiting.drain(240)
    assert Counter(at - waiting.sent[0][0] for at, _ in waiting.sent) == {0: 120, 5 * S: 1, 60 * S: 119}
    assert waiting.looks <= 120
    assert not redis.keys("notifier:backlogs:*")
