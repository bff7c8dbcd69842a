"""What was sent counts, also where its lease had ended before it is settled, and the sets of sends were gone by then.

Redis drops keys by its own clock, so here it is let pass; see `let_pass`. A second of these tests is ten of Redis's:
a busy machine shall not let a key expire between two steps.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from redis import Redis

from notifier.producer.cancel import Cancellation
from notifier.producer.exchanges import Exchanges
from notifier.queue import calls
from notifier.queue.backlogs import sweep
from notifier.queue.calls import Job, Leased, Pulled, Settlement
from notifier.queue.forget import forget
from notifier.queue.in_flight import renew, rq_run
from notifier.queue.retention import Retention
from notifier.queue.walk import Kind
from notifier.rules.category import LANES, Category, PlatformLimits
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, Policy, Window
from notifier.scripts.loader import Call, run
from notifier.scripts.records import RunFields
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from tests.harness.support import let_pass

S: Final = 10_000_000  # see above
NOW: Final = 1_700_000_000 * S
LEASE: Final = 10 * S
GAP: Final = Policy(gap_us=5 * S)
PLAIN: Final = ("a", "b", "c")


@dataclass
class Fleet:
    """Workers that are called by hand, on a clock of the test's, by which keys expire too."""

    redis: Redis
    policies: Policies
    now: int = NOW
    rules: RuleTable = field(init=False)

    def __post_init__(self) -> None:
        self.redis.flushdb()
        self.rules = RuleTable(self.policies)

    def let_pass(self, seconds: float) -> None:
        self.now += round(seconds * S)
        let_pass(self.redis, round(seconds * S))

    def send(
        self, *names: str, user: str = "ann", category: str = "a", targets: str = "- fcm:n|phone", **meta: Any
    ) -> None:
        written = json.dumps({"user": user, "category": category, **meta}).encode()
        jobs = [Job(name, "default", b"data", written, targets=targets) for name in names]
        run(self.redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="now", clock=str(self.now)))

    def look(self, worker: str = "v") -> Pulled:
        return run(self.redis, calls.pull(self._caller(worker), calls.Room(20), self.rules))

    def lease(self, worker: str = "w") -> list[Leased]:
        return self.look(worker).leased

    def settle(
        self, leased: Leased, worker: str = "w", state: Any = "delivered", detail: str = "", *, reached: bool = True
    ) -> bool:
        word = state if state in {"delivered", "failed"} else ""
        ended = Settlement(leased.job_id, leased.permit, leased.user, leased.category, reached, state, word, detail)
        return run(self.redis, calls.settle([ended], self.rules, self._caller(worker)))[0]

    def assert_goes_after(self, seconds: float, name: str, worker: str = "w") -> None:
        """Nothing goes until shortly before; then this alone."""
        self.let_pass(seconds - 0.1)
        assert self.lease(worker) == []
        self.let_pass(0.2)
        assert [each.job_id for each in self.lease(worker)] == [name]

    def end_an_orphan_beside(self, flying: str, **of: str) -> None:
        """One of a worker that died is settled while `flying` is in flight with another worker."""
        self.send("orphan")
        assert self.lease("dead")
        self.let_pass(9.9)
        self.send(flying, **of)
        assert self.lease("w")
        self.let_pass(0.2)
        (orphan,) = self.look("v").orphans
        assert self.settle(orphan, "v", "failed")

    def _caller(self, worker: str) -> calls.Worker:
        keep = Retention(600 * S, 600 * S, 600 * S)
        return calls.Worker(name=worker, lanes=LANES, lease_us=LEASE, keep=keep, clock=str(self.now))


@pytest.fixture
def fleet(redis: Redis) -> Callable[..., Fleet]:
    def make(policy: Policy | None = None, **more: Any) -> Fleet:
        categories = {name: Category(name) for name in PLAIN}
        return Fleet(redis, Policies(policy or Policy(), **({"categories": categories} | more)))

    return make


@pytest.mark.parametrize("late_s", [11, 14, 17])
def test_what_is_settled_late_counts_from_then_on(fleet: Callable[..., Fleet], late_s: int) -> None:
    """Nobody could ask Redis meanwhile; the provider may have read it just then. Its gap is kept, to its end."""
    f = fleet(GAP)
    f.send("first", "second")
    (first,) = f.lease()
    f.let_pass(late_s)
    assert f.settle(first)
    f.assert_goes_after(5, "second")


@pytest.mark.parametrize("late_s", [11, 17])
def test_so_it_does_for_the_limit_of_a_device(fleet: Callable[..., Fleet], late_s: int) -> None:
    """As for its user; another user has the same phone."""
    f = fleet(limits={"fcm": PlatformLimits(device=GAP)})
    f.send("first")
    f.send("second", user="bob")
    (first,) = f.lease()
    f.let_pass(late_s)
    assert f.settle(first)
    f.assert_goes_after(5, "second")


def test_what_is_renewed_late_keeps_its_user_closed(fleet: Callable[..., Fleet]) -> None:
    """Its permit and its claim are gone; until it is settled nothing goes that it would hold back."""
    f = fleet(GAP)
    f.send("first", "second")
    (first,) = f.lease()
    f.let_pass(17)
    assert run(f.redis, renew([(first, "")], lease_us=LEASE, claimant="w", clock=str(f.now))) == [True]
    assert f.lease("v") == []
    f.let_pass(3)
    assert f.settle(first)
    f.assert_goes_after(5, "second", "v")


def test_a_function_that_runs_for_long_counts_until_it_ends(fleet: Callable[..., Fleet]) -> None:
    """It is dated far ahead, and another send of the user may not shorten that."""
    f = fleet(Policy((Window(2, interval_us=S),)))
    f.send("function", category="b")
    (running,) = f.lease()
    f.settle(running, state="handed_to_rq")
    told = RunFields(str(f.now), running.permit, "ann", "b", "function", "", ahead_us=90 * S)
    assert run(f.redis, rq_run(told))
    f.send("one")
    f.settle(f.lease()[0])
    f.let_pass(30)
    f.send("two", "three")
    assert [each.job_id for each in f.lease()] == ["two"]


def test_the_end_of_an_orphan_forgets_nothing_in_flight(fleet: Callable[..., Fleet]) -> None:
    """It counts from now on, and for a second; what another worker has in flight counts for longer."""
    f = fleet(Policy((Window(2, interval_us=S),)))
    f.end_an_orphan_beside("flying", category="b")
    f.send("one", "two", "three", category="c")
    f.let_pass(1.1)
    assert [each.job_id for each in f.lease("v")] == ["one"], "two in a second, with the one that flies"


@pytest.mark.parametrize("behind", [(), ("high",)])
def test_what_a_dead_worker_was_not_to_send_holds_nobody_back(
    fleet: Callable[..., Fleet], behind: tuple[str, ...]
) -> None:
    """Law 3: nothing is settled of what is dropped; its backlog goes on when its lease ends, whatever is first."""
    f = fleet(GAP, categories={"a": Category("a", when_blocked="drop")})
    f.send("first")
    assert f.settle(f.lease("dead")[0], "dead")
    f.send("dropped")
    assert [each.dropped for each in f.lease("dead")] == ["user gap 50s"]
    f.let_pass(0.5)
    f.send("other")
    assert f.settle(f.lease("dead")[0], "dead", "dropped", reached=False)
    f.send(*behind, priority="high")
    assert f.lease() == []
    f.let_pass(9.4)
    assert f.lease() == []
    f.let_pass(0.2)
    assert [each.job_id for each in f.lease()] == [*behind, "dropped"][:1]


@pytest.mark.parametrize("is_pulled", [True, False])
def test_what_is_enqueued_again_as_its_worker_dies_ends_twice(fleet: Callable[..., Fleet], *, is_pulled: bool) -> None:
    """Law 2: the first use of the id ends as superseded, and the second goes, whether its queue was pulled or not."""
    f = fleet(GAP, categories={"a": Category("a", when_blocked="drop")})
    f.send("first")
    assert f.settle(f.lease("dead")[0], "dead")
    f.send("again")
    assert [each.dropped for each in f.lease("dead")] == ["user gap 50s"]
    f.redis.hset("rq:job:again", mapping={"status": "queued", "created_at": "later"})
    f.redis.rpush("rq:queue:default", "again")
    if is_pulled:
        assert f.lease() == []
    f.let_pass(10.1)
    assert [each.job_id for each in f.lease()] == ["again"]
    assert f.redis.hget("notifier:stats", "superseded") == b"1"


def test_nor_does_it_where_all_users_share_a_pace(fleet: Callable[..., Fleet]) -> None:
    """As for one user, so for the pace of a category."""
    f = fleet(categories={"a": Category("a", overall=Window(2, interval_us=S))})
    f.end_an_orphan_beside("flying", user="u2")
    for n in range(3, 6):
        f.send(f"m{n}", user=f"u{n}")
    f.let_pass(1.1)
    assert len(f.lease("v")) == 1


def test_an_orphan_of_a_forgotten_user_counts_with_what_is_hidden(fleet: Callable[..., Fleet]) -> None:
    """A user is forgotten between a worker's death and the next look, and the sends before that count on."""
    f = fleet(Policy((Window(2, interval_us=3600 * S),)))
    f.send("one")
    f.settle(f.lease()[0])
    f.send("two")
    assert f.lease("dead")
    f.let_pass(11)
    places = [""]
    for place in places:
        places += run(f.redis, forget("ann", (), "hide", place, clock=str(f.now))).places
    assert f.redis.keys("notifier:forgotten:*")
    (orphan,) = f.look("v").orphans
    f.settle(orphan, "v", "failed")
    f.send("three")
    f.let_pass(60)
    assert f.lease("v") == []


@pytest.mark.parametrize("targets", ["- fcm:c|phone", "- fcm:c fcm:c|phone tablet"])
@pytest.mark.parametrize("reached", [True, False])
def test_each_device_gets_back_what_was_only_reserved(fleet: Callable[..., Fleet], targets: str, reached: bool) -> None:
    """A bucket is fuller by a whole lease while a message is in flight; that and refusals are given back to each."""
    f = fleet(limits={"fcm": PlatformLimits(collapsible=Burst(3, every_us=180 * S))})
    for n in range(12):
        f.send(f"m{n}", targets=targets, collapse_id=f"c{n}")
        if not (leased := f.lease()):
            break
        f.settle(leased[0], state="delivered" if reached else "backlog", reached=reached)
        f.let_pass(0.1)
    assert n == (3 if reached else 11), "the fourth has to wait; what never went holds nothing back"
    if reached:
        assert (f.look().next_us or 0) - NOW == pytest.approx(180 * S, abs=S)


@pytest.mark.parametrize(("state", "detail"), [("later", "1000000"), ("backlog", "fault")])
def test_a_cancel_finds_what_comes_back_meanwhile(fleet: Callable[..., Fleet], state: str, detail: str) -> None:
    """It is in flight when its backlog is looked through, and waits again when those in flight are."""
    f = fleet()
    f.send("one")
    (leased,) = f.lease()
    steps = Exchanges(parse_settings("providers: {apns: {client: console}}")).cancel_of("ann", Kind())
    leases = "notifier:leases"

    def meanwhile(step: Any) -> Any:
        """What it is answered. It comes back before those in flight are looked through for the first time."""
        if isinstance(step, Call):
            return run(f.redis, replace(step, args=[str(f.now), *step.args[1:]]))
        with f.redis.pipeline(transaction=False) as pipe:
            step.queue(pipe)
            if leases in str(pipe.command_stack) and f.redis.zcard(leases):
                assert f.settle(leased, state=state, detail=detail, reached=False)
            return pipe.execute()

    assert finish(steps, meanwhile) == Cancellation(1, ())


def finish(steps: Any, answer: Callable[[Any], Any]) -> Any:
    try:
        asked = next(steps)
        while True:
            asked = steps.send(answer(asked))
    except StopIteration as end:
        return end.value


def test_a_clock_that_is_set_back_keeps_nothing_with_a_dead_worker(redis: Redis) -> None:
    """Law 2: its lease ends as if it began when a worker saw that the clock was set back."""
    fleet = Fleet(redis, Policies(Policy()))
    fleet.send("job", category="default")
    assert fleet.lease("dead")
    fleet.now -= 3600 * S
    run(redis, sweep(LANES, Retention(S, S, S), lease_us=LEASE, clock=str(fleet.now)))
    assert fleet.look().next_us == fleet.now + LEASE
    fleet.let_pass(10.1)
    assert [orphan.job_id for orphan in fleet.look().orphans] == ["job"]


def test_a_longer_lease_of_another_worker_stays(redis: Redis) -> None:
    """As after a change of the configuration that one worker has read and the other has not."""
    fleet = Fleet(redis, Policies(Policy()))
    fleet.send("job", category="default")
    assert fleet.lease("w")
    run(redis, sweep(LANES, Retention(S, S, S), lease_us=S, clock=str(fleet.now)))
    assert fleet.look().next_us == fleet.now + LEASE
