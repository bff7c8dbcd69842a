"""Law 4 while rules change: what is in flight with one worker keeps its backlog from all others."""

import json
from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from notifier.queue import calls
from notifier.queue.calls import Job, Leased, Settlement
from notifier.queue.retention import Retention
from notifier.rules.category import LANES, Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.take import enter

S = 1_000_000
GAP = RuleTable(Policies(Policy(gap_us=1)))
OF_CATEGORY = RuleTable(Policies(categories={"default": Category("default", policy=Policy(gap_us=1))}))
NONE = RuleTable(Policies())
BYPASS = RuleTable(Policies(Policy(gap_us=1), categories={"default": Category("default", bypass=True)}))
RULES = {"gap": GAP, "category": OF_CATEGORY, "none": NONE, "bypass": BYPASS}


@dataclass
class Backlog:
    """One backlog, two workers, and what each has in flight."""

    redis: Redis
    now: int = 1_700_000_000 * S
    flying: dict[str, list[Leased]] = field(default_factory=lambda: {"a": [], "b": []})

    def __post_init__(self) -> None:
        self.redis.flushdb()
        meta = json.dumps({"user": "ann", "category": "default"}).encode()
        jobs = [Job(f"job{n:02}", "default", b"data", meta) for n in range(40)]
        run(self.redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(self.now)))
        worker = calls.Worker(name="a", lanes=LANES, lease_us=1, clock=str(self.now))
        assert enter(self.redis, worker, calls.Room(40)).taken == 40

    def look(self, worker: str, rules: str, most: int = 1) -> int:
        """The user is looked at; the backlog is never in two hands. Returns how many were taken."""
        self.now += 10
        caller = calls.Worker(name=worker, lanes=LANES, lease_us=60 * S, clock=str(self.now))
        self.redis.zadd("notifier:wakeups:default", {"ann": self.now}, xx=True)
        leased = run(self.redis, calls.pull(caller, calls.Room(most), RULES[rules])).leased
        self.flying[worker] += leased
        assert not (self.flying["a"] and self.flying["b"])
        return len(leased)

    def settle(self, worker: str, rules: str) -> None:
        """What that worker has had for longest has been delivered."""
        self.now += 10
        if not self.flying[worker]:
            return
        leased = self.flying[worker].pop(0)
        done = Settlement(leased.job_id, leased.permit, "ann", "default", reached=True, state="delivered")
        call = calls.settle(
            [done], RULES[rules], calls.Worker(name=worker, keep=Retention(S, S, S), clock=str(self.now))
        )
        assert run(self.redis, call) == [True]


@pytest.mark.parametrize(("before", "after"), list(product(RULES, RULES)))
def test_a_backlog_in_flight_is_left_alone_when_rules_change(redis: Redis, before: str, after: str) -> None:
    """Taken by one set of rules, looked at and settled by another: the other worker has to wait, and then goes on."""
    backlog = Backlog(redis)
    assert backlog.look("a", before) == 1
    assert backlog.look("b", after) == 0
    backlog.settle("a", after)
    assert backlog.look("b", after) == 1
    backlog.settle("b", before)
    assert not redis.keys("notifier:claim:*")


steps = st.tuples(st.sampled_from(["look", "settle"]), st.sampled_from("ab"), st.sampled_from(sorted(RULES)))


@given(story=st.lists(st.tuples(steps, st.integers(1, 3)), max_size=30))
def test_no_backlog_is_ever_in_two_hands(redis: Redis, story: list[tuple[tuple[str, str, str], int]]) -> None:
    """Whoever looks and settles, by whichever rules: no two workers have heads of one backlog, and no claim stays."""
    backlog = Backlog(redis)
    for (verb, worker, rules), most in story:
        if verb == "look":
            backlog.look(worker, rules, most)
        else:
            backlog.settle(worker, rules)
    for worker in "ab":
        while backlog.flying[worker]:
            backlog.settle(worker, "none")
    assert not redis.keys("notifier:claim:*")
