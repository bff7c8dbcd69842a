"""Law 4 when a category's lane changes while its notifications stand in the queue of the lane before."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from notifier.operations.stats import read_now
from notifier.queue import calls
from notifier.queue.backlogs import cancel, sweep
from notifier.queue.calls import Job, Leased, Settlement
from notifier.queue.retention import Retention
from notifier.queue.walk import Kind, find_waiting
from notifier.rules.category import LANES, Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.store.exchange import exchange
from tests.contract.queue.test_walk import met

S = 1_000_000
CATEGORIES = {name: Category(name) for name in ("news", "chat", "other", "default")}
RULES = RuleTable(Policies(categories=CATEGORIES))
ALL = [LANES]
SPLIT = [(lane,) for lane in LANES]
SPLITS = [ALL, SPLIT, [("urgent",), ("bulk",)], [("urgent", "default"), ("bulk",)]]


@dataclass
class Queues:
    """Producers that follow different files, and workers that serve different lanes."""

    redis: Redis
    workers: Sequence[tuple[str, ...]]
    rules: RuleTable = RULES
    now: int = 1_700_000_000 * S
    accepted: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.redis.flushdb()

    def send(self, lane: str, count: int = 1, category: str = "news", user: str = "ann") -> None:
        """By a producer whose file has the category in that lane."""
        names = [f"{category}-{user}-{len(self.accepted) + n:04}" for n in range(count)]
        meta = json.dumps({"user": user, "category": category}).encode()
        jobs = [Job(name, lane, b"data", meta, category=category) for name in names]
        run(self.redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(self.now)))
        self.accepted += names

    def rq_jobs(self, count: int) -> list[str]:
        """Other functions' jobs, by RQ, that a worker has read already: they stand in bulk."""
        names = [f"sync{n}" for n in range(count)]
        for name in names:
            read = {"origin": "bulk", "status": "queued", "data": "x", "push_read": "1"}
            self.redis.hset(f"rq:job:{name}", mapping=read)
        self.redis.rpush("rq:queue:bulk", *names)
        return names

    def look(self, n: int, most: int = 6) -> bool:
        """One round of a worker, which delivers what it takes. Returns whether it found anything to do."""
        self.now += 10
        name, lanes = f"w{n}", self.workers[n]
        worker = calls.Worker(name=name, lanes=lanes, lease_us=30 * S, clock=str(self.now))
        pulled = run(self.redis, calls.pull(worker, calls.Room(most), self.rules))
        self.deliver(name, pulled.leased)
        return bool(pulled.leased or pulled.taken or pulled.next_us == self.now)

    def deliver(self, name: str, leased: Sequence[Leased]) -> None:
        self.sent += [one.job_id for one in leased]
        done = [
            Settlement(one.job_id, one.permit, one.user, one.category, reached=True, state="delivered")
            for one in leased
        ]
        keep = Retention(S, S, S)
        if done:
            run(self.redis, calls.settle(done, self.rules, calls.Worker(name=name, keep=keep, clock=str(self.now))))

    def drain(self) -> None:
        """All look in turns until none finds anything."""
        for _ in range(2_000):
            found = [self.look(n) for n in range(len(self.workers))]
            if not any(found):
                return
        raise AssertionError("it comes to no end")

    def is_over(self, lane: str) -> bool:
        """Whether the next of the category stands in the queue of this lane, by which it is configured."""
        self.send(lane)
        return self.redis.lindex(f"rq:queue:{lane}", -1) == self.accepted[-1].encode()

    def of(self, category: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if name.startswith(category)]


@pytest.mark.parametrize("workers", SPLITS)
@pytest.mark.parametrize("stands", [5, 40])
def test_the_earlier_go_first_when_a_lane_becomes_more_urgent(
    redis: Redis, workers: list[tuple[str, ...]], stands: int
) -> None:
    """Also where the workers of the new lane do not serve the one before, and its queue is long."""
    queues = Queues(redis, workers)
    queues.send("bulk", stands, category="other", user="bob")
    queues.send("bulk", 5)
    queues.send("urgent", 5)
    queues.drain()
    assert sorted(queues.sent) == sorted(queues.accepted)
    assert queues.of("news", queues.sent) == queues.of("news", queues.accepted)
    assert queues.is_over("urgent")


@pytest.mark.parametrize("workers", [ALL, SPLIT])
def test_the_earlier_go_first_when_a_lane_becomes_less_urgent(redis: Redis, workers: list[tuple[str, ...]]) -> None:
    """The worker of the lower lane looks first and finds nothing that may go yet."""
    queues = Queues(redis, list(reversed(workers)))
    queues.send("urgent", 5)
    queues.send("bulk", 5)
    queues.drain()
    assert queues.sent == queues.accepted


def test_others_do_not_wait_for_a_change(redis: Redis) -> None:
    """Law 9: who is of another category goes past those that have to let the earlier go first."""
    queues = Queues(redis, SPLIT)
    queues.send("bulk", 200, user="bob")
    queues.send("urgent", 2)
    queues.send("urgent", 2, category="chat", user="eve")
    queues.look(0, most=20)
    assert queues.of("chat", queues.sent) == queues.of("chat", queues.accepted)
    assert queues.of("news-ann", queues.sent) == []
    queues.drain()
    assert queues.of("news-ann", queues.sent) == queues.of("news-ann", queues.accepted)


def test_what_follows_the_lane_before_is_looked_at_wherever_what_waits_is(redis: Redis) -> None:
    """Cancelled, listed for its user, and counted, as what else stands in the queues."""
    queues = Queues(redis, [("urgent",)])
    queues.send("bulk", 50, category="other", user="bob")
    queues.send("bulk", 1, user="bob")
    queues.send("urgent", 40)
    stood = sum(redis.llen(f"rq:queue:{lane}") for lane in LANES)
    news = {name for name in queues.accepted if name.startswith("news")}
    assert set(met(redis, Kind("news"))) == news - set(queues.sent)
    assert set(exchange(redis, find_waiting("ann"))) == set(queues.of("news-ann", queues.accepted))
    assert read_now(redis).queued == stood


def test_a_change_ends_however_much_arrives_in_the_lane_before(redis: Redis) -> None:
    """Others send faster than the workers do, so that the queue never empties."""
    queues = Queues(redis, [("urgent",), ("bulk",)])
    queues.send("bulk", 200, category="other", user="bob")
    queues.send("bulk", 1)
    queues.send("urgent", 1)
    for _ in range(120):
        queues.send("bulk", 10, category="other", user="bob")
        queues.look(0, most=2)
        queues.look(1, most=2)
    assert redis.exists("rq:queue:bulk")
    assert queues.is_over("urgent")
    queues.drain()
    assert queues.of("news", queues.sent) == queues.of("news", queues.accepted)
    assert queues.of("other", queues.sent) == queues.of("other", queues.accepted)


@pytest.mark.parametrize("workers", SPLITS)
@pytest.mark.parametrize("how", ["cancelled", "cancelled and swept", "deleted"])
def test_a_change_goes_on_where_the_last_was_taken_out_by_hand(
    redis: Redis, workers: list[tuple[str, ...]], how: str
) -> None:
    """By RQ's own cancel: those before it stand there still."""
    queues = Queues(redis, workers)
    queues.send("bulk", 5)
    queues.send("urgent", 1)
    last = queues.accepted[-1]
    redis.lrem("rq:queue:bulk", 0, last)
    if how == "deleted":
        redis.delete(f"rq:job:{last}")
    else:
        redis.hset(f"rq:job:{last}", "status", "canceled")
        redis.zadd("rq:canceled:bulk", {last: queues.now // S})
    if "swept" in how:
        run(redis, sweep(LANES, Retention(S, S, S), lease_us=30 * S, clock=str(queues.now)))
        assert redis.hget(f"rq:job:{last}", "push_outcome") == b"cancelled"
    queues.send("urgent", 5)
    queues.drain()
    assert queues.sent == [name for name in queues.accepted if name != last]
    assert queues.is_over("urgent")


def test_what_says_that_it_is_of_no_lane_is_sent_during_a_change(redis: Redis) -> None:
    """A plain producer may write there what it likes: its lane is that of its queue."""
    queues = Queues(redis, ALL)
    queues.send("bulk", 5)
    queues.send("bulk", 1, category="other", user="bob")
    redis.hset(f"rq:job:{queues.accepted[-1]}", "origin", "reports")
    queues.send("urgent", 1)
    queues.drain()
    assert sorted(queues.sent) == sorted(queues.accepted)


def test_a_change_that_is_over_stays_over(redis: Redis) -> None:
    """Also where nothing is known any more of its last one, and others stand in the lane before."""
    queues = Queues(redis, ALL)
    queues.send("bulk", 3)
    queues.send("urgent", 1)
    queues.drain()
    assert queues.is_over("urgent")
    queues.drain()
    redis.delete("notifier:delivered", *redis.keys("rq:job:*"))
    for _ in range(3):
        queues.send("bulk", 1, category="other", user="bob")
        queues.send("urgent", 1)
    assert redis.lrange("rq:queue:urgent", 0, -1) == [name.encode() for name in queues.of("news", queues.accepted)[-3:]]


def test_a_change_goes_by_the_queue_where_the_last_was_cancelled(redis: Redis) -> None:
    """It stands there still, and so do those before it."""
    queues = Queues(redis, ALL)
    queues.send("bulk", 5)
    run(redis, cancel([queues.accepted[-1]], Retention(S, S, S), clock=str(queues.now)))
    queues.send("urgent", 5)
    queues.drain()
    assert queues.sent == [name for n, name in enumerate(queues.accepted) if n != 4]


def test_a_change_is_over_once_none_of_the_category_stand_in_the_lane_before(redis: Redis) -> None:
    """Others may stand there as long as they like."""
    queues = Queues(redis, [("urgent",), ("bulk",)])
    queues.send("bulk", 2)
    queues.send("bulk", 60, category="other", user="bob")
    queues.send("urgent", 1)
    assert redis.lrange("rq:queue:bulk", -1, -1) == [b"news-ann-0062"]
    for _ in range(12):
        queues.look(1)
        queues.send("bulk", 10, category="other", user="bob")
    queues.send("urgent", 1)
    assert redis.lrange("rq:queue:urgent", 0, -1) == [queues.accepted[-1].encode()]
    queues.drain()
    assert queues.of("news", queues.sent) == queues.of("news", queues.accepted)


def test_a_change_ends_when_the_last_of_the_lane_before_was_deleted(redis: Redis) -> None:
    """Nobody waits for what is no more in the queue, in whichever way it left."""
    queues = Queues(redis, SPLIT)
    queues.send("bulk", 3)
    queues.send("urgent", 2)
    last = queues.accepted[2]
    redis.lrem("rq:queue:bulk", 0, last)
    redis.delete(f"rq:job:{last}")
    queues.send("bulk", 40, category="other", user="bob")
    queues.drain()
    assert queues.of("news", queues.sent)[-2:] == queues.accepted[3:5]
    assert queues.is_over("urgent")


steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(LANES), st.integers(1, 9)),
    st.tuples(st.just("look"), st.just(""), st.integers(0, 2)),
)


@given(story=st.lists(steps, max_size=25), split=st.booleans())
def test_order_holds_however_lanes_change(redis: Redis, story: list[tuple[str, str, int]], split: bool) -> None:
    """Producers with different files, a change in the middle of a change: the order of acceptance, and none is lost."""
    queues = Queues(redis, SPLIT if split else ALL * 3)
    for verb, lane, number in story:
        if verb == "send":
            queues.send(lane, number)
        else:
            queues.look(number, most=4)
    queues.drain()
    assert queues.sent == queues.accepted


def waiting_in_two_lanes(redis: Redis, *users: str) -> Queues:
    """Whoever has had one, and may have the next: it stands in either lane, a gap apart."""
    queues = Queues(redis, ALL, rules=RuleTable(Policies(Policy(gap_us=S), categories=CATEGORIES)))
    for user in users:
        queues.send("urgent", 2, category="chat", user=user)
        queues.send("bulk", 1, category="other", user=user)
    queues.drain()
    assert len(queues.sent) == len(users)
    queues.now += 2 * S
    return queues


def test_who_is_due_in_two_lanes_and_finds_no_room_stays_due_in_both(redis: Redis) -> None:
    """Law 9: at the next look the more urgent goes first, not once the turn of the other lane has come."""
    queues = waiting_in_two_lanes(redis, "ann", "zed")
    queues.send("urgent", 3, category="chat", user="ann")
    lanes = ("urgent", "bulk")
    due = [redis.zscore(f"notifier:wakeups:{lane}", "zed") for lane in lanes]
    for lane, at, later in zip(lanes, due, (-1, 1), strict=True):
        redis.zadd(f"notifier:wakeups:{lane}", {"ann": at + later})
    worker = calls.Worker(name="w", lanes=LANES, lease_us=30 * S, clock=str(queues.now))
    leased = run(redis, calls.pull(worker, calls.Room(3), RULES)).leased
    assert [each.user for each in leased] == ["ann"] * 3
    assert [redis.zscore(f"notifier:wakeups:{lane}", "zed") for lane in lanes] == due


def test_whose_rules_a_worker_is_to_write_down_first_stays_due_in_every_lane(redis: Redis) -> None:
    """Law 3: it may die before it has; whoever looks next finds the user."""
    queues = waiting_in_two_lanes(redis, "ann")
    due = redis.zscore("notifier:wakeups:urgent", "ann")
    assert due is not None
    rules = RuleTable(Policies(users={"somebody": Policy()}, categories=CATEGORIES))
    worker = calls.Worker(name="w", lanes=LANES, lease_us=30 * S, clock=str(queues.now))
    pulled = run(redis, calls.pull(worker, calls.Room(1), rules))
    assert (pulled.unpublished, pulled.leased) == (True, [])
    assert [redis.zscore(f"notifier:wakeups:{lane}", "ann") for lane in ("urgent", "bulk")] == [due] * 2


def test_where_nobody_serves_the_lane_before_all_wait_for_a_worker_that_does(redis: Redis) -> None:
    """Then they go in their order."""
    queues = Queues(redis, [("urgent",)])
    queues.send("bulk", 3)
    queues.send("urgent", 3)
    queues.drain()
    assert queues.sent == []
    queues.workers = SPLIT
    queues.drain()
    assert queues.sent == queues.accepted


def test_an_id_that_stands_twice_in_the_lane_before_ends_no_change_too_early(redis: Redis) -> None:
    """The first was taken, and those before the second stand there still."""
    queues = Queues(redis, [("urgent",), ("bulk",)])
    queues.send("bulk", 1)
    queues.send("urgent", 1)
    between, again = queues.rq_jobs(60), queues.accepted[-1]
    redis.delete("rq:queue:bulk")
    redis.rpush("rq:queue:bulk", again, *between, queues.accepted[0], again)
    queues.look(1)
    assert not queues.is_over("urgent")
    queues.drain()
    assert sorted(queues.sent) == sorted(queues.accepted)
