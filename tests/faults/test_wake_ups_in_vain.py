"""No call leaves a wake-up where its user has no backlog: whoever audits between any two calls finds nothing."""

import itertools
import json
from typing import Any, Final

import pytest

from notifier.queue import backlogs, calls
from notifier.queue.retention import Retention
from notifier.rules.category import LANES, Category
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.faults.consistency import assert_consistent
from tests.harness.take import enter

S: Final = 1_000_000
CATEGORIES: Final = ("default", "chat", "news", *(f"c{n}" for n in range(60)))
RULES: Final = RuleTable(Policies(categories={name: Category(name) for name in CATEGORIES}))
KEEP: Final = Retention(S, S, S)


class Between:
    """One Redis and its calls one by one; an audit after each. Each pull comes a lease after the one before."""

    def __init__(self, redis: Any) -> None:
        self.redis, self.numbers = redis, itertools.count()
        seconds, us = redis.time()
        self.now = int(seconds) * S + int(us)

    def send(self, lane: str, category: str) -> str:
        job_id = str(next(self.numbers))
        meta = json.dumps({"user": "ada", "category": category}).encode()
        run(self.redis, calls.enqueue([calls.Job(job_id, lane, b"x", meta)], dedupe_for_us=1, stamp=""))
        assert_consistent(self.redis)
        return job_id

    def enter(self, *lanes: str) -> None:
        """Have all enter their backlogs."""
        enter(self.redis, self.worker(*lanes), calls.Room(100), *CATEGORIES)
        assert_consistent(self.redis)

    def pull(self, *lanes: str, room: int = 100) -> list[calls.Leased]:
        leased = run(self.redis, calls.pull(self.worker(*lanes), calls.Room(room), RULES)).leased
        assert_consistent(self.redis)
        return leased

    def worker(self, *lanes: str) -> calls.Worker:
        self.now += 2 * S
        return calls.Worker(name="w", lanes=lanes or LANES, lease_us=S, clock=str(self.now))

    def deliver(self, leased: list[calls.Leased]) -> None:
        ended = [calls.Settlement(*one[:4], reached=True, state="delivered", word="delivered") for one in leased]
        run(self.redis, calls.settle(ended, RULES, calls.Worker(name="w", keep=KEEP, clock=str(self.now))))
        assert_consistent(self.redis)

    def lanes_awake(self) -> set[str]:
        return {lane for lane in LANES if self.redis.exists(f"notifier:wakeups:{lane}")}


@pytest.fixture
def between(redis: Any) -> Between:
    return Between(redis)


def test_a_backlog_that_a_cancel_emptied_in_another_lane(between: Between) -> None:
    """A worker of the one lane forgets the backlog of the other, and its wake-up with it."""
    between.send("urgent", "chat")
    gone = between.send("bulk", "news")
    between.enter()
    assert run(between.redis, backlogs.cancel([gone], KEEP)) == ["cancelled"]
    assert_consistent(between.redis)
    assert len(between.pull("urgent")) == 1
    assert between.lanes_awake() == set()


def test_a_worker_without_room_where_another_took_all(between: Between) -> None:
    """It gives back the place of those alone who wait still."""
    between.send("default", "news")
    between.enter()
    assert len(between.pull()) == 1
    assert between.pull(room=0) == []
    assert between.lanes_awake() == set()


def test_an_orphan_in_a_category_that_is_named_as_its_lane(between: Between) -> None:
    """A backlog moves to a more urgent lane; what is closed for an orphan of the category is no backlog."""
    between.send("default", "default")
    assert len(between.pull()) == 1  # its worker dies
    between.pull("bulk")
    assert between.redis.hgetall("notifier:backlogs:{ada}") == {b"#o:0": b"default"}
    for lane in ("default", "urgent"):
        between.send(lane, "default")
        between.pull("urgent", "default")
    assert between.lanes_awake() == {"urgent"}


def test_the_last_of_a_lane_of_one_who_waits_in_very_many_categories(between: Between) -> None:
    """Who is looked at a part at a time is not looked at in the lanes that all backlogs have left."""
    between.send("urgent", "chat")
    for n in range(60):
        between.send("bulk", f"c{n}")
    for _ in range(20):
        between.deliver(between.pull(room=7))
    assert between.redis.hget("notifier:stats", "delivered") == b"61"
    assert between.lanes_awake() == set()
