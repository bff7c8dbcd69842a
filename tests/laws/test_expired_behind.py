"""What expires behind the head of its backlog ends at its expiry, and takes nobody's place after it (laws 2 and 3)."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from notifier.errors import Refused
from notifier.queue import backlogs, calls
from notifier.queue.retention import Retention
from notifier.rules.category import Category, PlatformLimits
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import CONSOLE, ends, note, notifier, worker, write_config
from tests.laws.test_rq_by_hand import KEPT, World, world  # noqa: F401 - world is a fixture

S: Final = 1_000_000
HOUR: Final = 3600 * S
START: Final = 1_800_000_000 * S
RULES: Final = Policies(Policy((Window(1, interval_us=HOUR),)), categories={"default": Category("default")})
HOURLY: Final = Policy((Window(1, interval_us=HOUR),))
LIMITED: Final = Policies(
    Policy(),
    categories={"default": Category("default")},
    limits={"apns": PlatformLimits(background=HOURLY), "fcm": PlatformLimits(device=HOURLY)},
)
LANES: Final = ("urgent", "default", "bulk")


def targets(job_id: str) -> str:
    """Of a background push, or an alert."""
    return "- apns:b|p" if job_id.startswith("push") else "- fcm:n|d"


class Backlog:
    """One user's backlog, whose head waits for an hour, on an injected clock."""

    def __init__(self, redis: Redis, rules: Policies = RULES) -> None:
        self.redis, self.now, self.rules = redis, START, RuleTable(rules)

    def send(
        self, *jobs: tuple[str, int | None], high: bool = False, most: int | None = None, lane: str = "default"
    ) -> list[str | Refused]:
        """Each with its expiry in s, or None."""
        meta = json.dumps({"user": "anna", "category": "default", **({"priority": "high"} if high else {})}).encode()
        overflow: Any = {"overflow": "reject", "max_waiting": most} if most else {}
        accepted = [calls.Job(i, lane, b"x", meta, s and s * S, targets=targets(i), **overflow) for i, s in jobs]
        call = calls.enqueue(accepted, dedupe_for_us=S, stamp="", clock=str(self.now))
        return run(self.redis, call)

    def look(self) -> list[calls.Leased]:
        """What may go now."""
        worker = calls.Worker(name="w", lanes=LANES, lease_us=S, clock=str(self.now))
        return run(self.redis, calls.pull(worker, calls.Room(50), self.rules)).leased

    def settle(self, leased: calls.Leased, state: calls.State = "delivered", answered: str = "") -> None:
        word, detail = ("delivered", "") if state == "delivered" else ("", 0)
        done = calls.Settlement(
            leased.job_id, leased.permit, leased.user, leased.category, True, state, word, detail, answered
        )
        clock = str(self.now)
        call = calls.settle([done], self.rules, calls.Worker(name="w", keep=KEPT, clock=clock))
        assert run(self.redis, call) == [True]

    def sweep(self, after_s: float = 0) -> int:
        self.now += int(after_s * S)
        return run(self.redis, backlogs.sweep(LANES, KEPT, lease_us=S, clock=str(self.now)))[0]

    def waiting(self) -> list[str]:
        return [i.decode() for i in self.redis.zrange("notifier:backlog:{anna}:default", 0, -1)]

    def expiring(self) -> list[str]:
        return [i.decode() for i in self.redis.zrange("notifier:expiring", 0, -1)]

    def job(self, job_id: str, field: str) -> str | None:
        value: Any = self.redis.hget(f"rq:job:{job_id}", field)
        return None if value is None else value.decode()


@pytest.fixture
def backlog(redis: Redis) -> Backlog:
    """The first was sent just now; so the second stands at the head for an hour."""
    backlog = Backlog(redis)
    backlog.send(("sent", None))
    backlog.settle(backlog.look()[0])
    backlog.send(("head", None))
    assert backlog.look() == []
    return backlog


def test_it_ends_when_it_expires_and_not_before(backlog: Backlog, redis: Redis) -> None:
    """Recorded as expired, once; the others keep their order; its record is kept as RQ's registry says."""
    backlog.send(("a", 10), ("b", None), ("c", 20), ("d", 10))
    backlog.look()
    assert backlog.sweep(9.999) == 0
    assert backlog.waiting() == ["head", "a", "b", "c", "d"]
    assert backlog.sweep(0.001) == 2
    assert backlog.waiting() == ["head", "b", "c"]
    assert backlog.sweep() == 0
    assert [backlog.job(i, "push_outcome") for i in "abcd"] == ["expired", None, None, "expired"]
    assert backlog.job("a", "status") == "failed"
    assert redis.zrange("rq:failed:default", 0, -1) == [b"a", b"d"]
    assert 0 < redis.ttl("rq:job:a") <= KEPT.failed_us // S
    assert redis.zcard("rq:scheduled:default") == 3
    assert redis.hget("notifier:stats", "expired") == b"2"


def test_it_makes_room_for_others(backlog: Backlog) -> None:
    """What has expired counts for no limit of what may wait."""
    backlog.send(("a", 10))
    backlog.look()
    assert isinstance(backlog.send(("b", None), most=2)[0], Refused)
    backlog.sweep(10)
    assert backlog.send(("b", None), most=2) == ["b"]


def test_a_head_that_another_displaces_expires_in_time(backlog: Backlog) -> None:
    """It was not behind when it came: an urgent one went before it."""
    backlog.now += HOUR - 20 * S
    backlog.send(("second", 40))
    backlog.look()
    backlog.now += 20 * S
    backlog.settle(backlog.look()[0])
    assert backlog.waiting() == ["second"]
    backlog.send(("urgent", None), high=True)
    backlog.look()
    assert backlog.waiting() == ["urgent", "second"]
    assert backlog.sweep(20) == 1
    assert backlog.waiting() == ["urgent"]


def test_a_head_that_is_displaced_as_its_lane_changes_expires_in_time(redis: Redis) -> None:
    """The backlog is new in its lane, and not empty."""
    backlog = Backlog(redis)
    backlog.send(("sent", None), lane="bulk")
    backlog.settle(backlog.look()[0])
    backlog.send(("head", 40), lane="bulk")
    assert backlog.look() == []
    backlog.send(("urgent", None), high=True, lane="urgent")
    assert backlog.look() == []
    assert backlog.waiting() == ["urgent", "head"]
    assert backlog.expiring() == ["head"]
    assert backlog.sweep(40) == 1
    assert backlog.waiting() == ["urgent"]


@pytest.mark.parametrize("comes", ["before the alert", "after the alert, urgent"])
def test_what_steps_behind_an_alert_expires_in_time(redis: Redis, comes: str) -> None:
    """A background push whose device has no room: it was at the head when it came."""
    backlog = Backlog(redis, LIMITED)
    backlog.send(("push sent", None), ("alert sent", None))
    for leased in backlog.look():
        backlog.settle(leased)
    if comes == "before the alert":
        backlog.send(("push", 40), ("alert", None))
    else:
        backlog.send(("alert", None))
        backlog.look()
        backlog.send(("push", 40), high=True)
    assert backlog.look() == []
    assert backlog.waiting() == ["alert", "push"]
    assert backlog.expiring() == ["push"]
    assert backlog.sweep(40) == 1
    assert backlog.waiting() == ["alert"]


def test_what_steps_behind_nothing_is_left_to_its_wake_up(redis: Redis) -> None:
    """It is the head still, so nothing more is noted."""
    backlog = Backlog(redis, LIMITED)
    backlog.send(("push sent", None), ("alert sent", None))
    for leased in backlog.look():
        backlog.settle(leased)
    backlog.send(("push", 40))
    assert backlog.look() == []
    assert backlog.expiring() == []
    backlog.now += 40 * S
    assert [leased.job_id for leased in backlog.look()] == ["push"]  # for its worker to end


@pytest.mark.parametrize("goes", ["sent", "cancelled", "deleted"])
def test_who_leaves_is_forgotten(backlog: Backlog, redis: Redis, goes: str) -> None:
    """The deadlines of what has left its backlog are not kept until they pass."""
    backlog.send(("a", 7200))
    backlog.look()
    assert backlog.expiring() == ["a"]
    if goes == "sent":
        backlog.now += HOUR
        backlog.settle(backlog.look()[0])
        backlog.now += HOUR
        assert [leased.job_id for leased in backlog.look()] == ["a"]
    elif goes == "cancelled":
        assert run(redis, backlogs.cancel(["a"], Retention(HOUR), clock=str(backlog.now))) == ["cancelled"]
    else:  # by RQ, which tells nobody: it is forgotten when its time comes
        redis.delete("rq:job:a")
        assert backlog.sweep(7200) == 0
    assert backlog.expiring() == []


def test_what_is_in_flight_is_left_to_its_worker(backlog: Backlog) -> None:
    """A device took it before it came back to its backlog: then it is delivered, and not expired."""
    backlog.now += HOUR
    head = backlog.look()[0]
    backlog.send(("other", None), high=True)
    backlog.send(("late", 10))
    backlog.look()
    backlog.settle(head)
    backlog.look()
    backlog.redis.hset("rq:job:late", "push_answered", '{"0": "delivered"}')
    assert backlog.sweep(10) == 1
    assert backlog.redis.zscore("notifier:delivered", "late")
    assert backlog.redis.hget("notifier:stats", "expired") is None


def test_a_plain_message_pays_nothing(redis: Redis) -> None:
    """Without an expiry nothing is noted; with one, only where it stands behind another."""
    backlog = Backlog(redis)
    backlog.send(("a", 60))
    backlog.look()
    backlog.send(*((f"b{n}", None) for n in range(20)))
    backlog.look()
    assert not redis.exists("notifier:expiring")


def test_many_that_expire_at_once_end_in_pages(backlog: Backlog) -> None:
    """One call ends a bounded number: Redis is free between them."""
    backlog.send(*((f"j{n}", 10) for n in range(250)))
    for _ in range(9):
        backlog.look()
    assert len(backlog.waiting()) == 251
    assert [backlog.sweep(10), backlog.sweep(), backlog.sweep(), backlog.sweep()] == [100, 100, 50, 0]
    assert backlog.waiting() == ["head"]


def test_a_requeued_one_is_not_taken_for_the_expired(world: World) -> None:  # noqa: F811 - the fixture
    """What `rq requeue` begins anew has its whole time once more; the audit finds nothing wrong."""
    world.plain("slow", "first")
    world.plain("slow", "head")
    world.plain("slow", "late", meta={"expires_in": 3_600})
    world.work()
    assert world.sweep() == 0
    world.redis.hset("rq:job:late", "push_deadline", 1)  # long ago
    world.redis.zadd("notifier:expiring", {"late": 1}, xx=True)
    assert world.sweep() == 1
    assert world.state("late") == "expired"
    world.all_right()
    world.job("late").requeue()
    world.work()
    assert world.sweep() == 0
    assert world.state("late") == "waiting"
    world.all_right()


def test_a_worker_does_it(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """The head waits for an hour, the one behind it ends within its beats."""
    config = write_config(tmp_path, redis_server.url, CONSOLE, user={"windows": ["1/1h"]})
    with worker(config) as running, notifier(config) as producer:
        running.ready(redis)
        producer.send(note("anna", "sent"))
        head = producer.send(note("anna", "head"))
        late = producer.send(note("anna", "late", expires_in=0.5))
        ends(producer, late, "expired")
        status = producer.status(late)
        assert status is not None
        assert status.reason == "expired while it waited"
        ends(producer, head, "waiting")
