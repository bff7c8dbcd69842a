"""A route by which a worker has as much under way as its provider bears: what is over it waits in Redis, in order."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis import Redis

from notifier import Notifier
from notifier.queue import calls
from notifier.queue.calls import Leased, Settlement, State
from notifier.queue.circuits import BUSY_SHOWN_US, LIMITS, find_routes
from notifier.queue.retention import Retention
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.store.exchange import exchange
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import apns, eventually, fcm, note, notifier, write_config
from tests.harness.take import take

LEASE_US = 60_000_000
LANES = ("urgent", "default", "bulk")
CATEGORIES = (
    Category("default"),
    Category("chat", lane="urgent"),
    Category("marketing", lane="bulk"),
    Category("comments", lane="default", when_blocked="collapse"),
)
YAML = {
    "default": {"lane": "default"},
    "chat": {"lane": "urgent"},
    "marketing": {"lane": "bulk"},
    "comments": {"lane": "default", "when_blocked": "collapse"},
}
RULES = RuleTable(Policies(categories={category.name: category for category in CATEGORIES}), LANES)


class World:
    """A Redis, a producer, and workers that are called by hand."""

    def __init__(self, redis: Redis, producer: Notifier, url: str) -> None:
        self.redis, self.producer, self.url = redis, producer, url

    def take(self, worker: str = "w", lanes: Sequence[str] = LANES, **rooms: int) -> list[Leased]:
        """What a worker is given that has this room by each route, and 50 in all."""
        caller = calls.Worker(name=worker, lanes=lanes, lease_us=LEASE_US)
        return take(self.redis, caller, calls.Room(50, by_route=rooms), RULES).leased

    def settle(self, leased: Sequence[Leased], worker: str = "w", state: State = "delivered") -> None:
        """All of these are delivered, or what else `state` says."""
        reached = state == "delivered"
        done = [Settlement(each.job_id, each.permit, each.user, each.category, reached, state) for each in leased]
        call = calls.settle(done, RULES, calls.Worker(name=worker, keep=Retention(10**9, 0, 10**9)))
        assert all(run(self.redis, call))

    def drain(self, **rooms: int) -> list[str]:
        """The users of all that goes, take after take."""
        gone: list[str] = []
        while leased := self.take(**rooms):
            gone += [each.user for each in leased]
            self.settle(leased)
        return gone


@pytest.fixture
def world(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[World]:
    with notifier(write_config(tmp_path, redis_server.url, categories=YAML)) as producer:
        yield World(redis, producer, redis_server.url)


def users(leased: Sequence[Leased]) -> list[str]:
    return [each.user for each in leased]


def test_no_more_is_leased_than_may_be_sent(world: World) -> None:
    """Of 30 three go; the others wait in the order in which they came, and cost nothing until there is room."""
    for n in range(30):  # one by one: each is due at a moment of its own
        world.producer.send(note(f"u{n}"))
    ordered = [f"u{n}" for n in range(30)]
    first = world.take(apns=3)
    assert users(first) == ordered[:3]
    for _ in range(3):
        assert world.take(apns=0) == []
    assert int(world.redis.hget("notifier:stats", "looked") or 0) <= 30  # type: ignore[arg-type]
    world.settle(first)
    assert sorted(world.drain(apns=4)) == sorted(ordered[3:])
    assert world.redis.smembers("notifier:routes") == set()


def test_what_waited_for_a_route_goes_before_what_has_just_come(world: World) -> None:
    """First come, first served, though others of the same lane keep arriving."""
    for n in range(5):
        world.producer.send(note(f"old{n}"))
        assert world.take(apns=0) == []
    gone = []
    for n in range(5):
        world.producer.send(note(f"new{n}"))
        leased = world.take(apns=1)
        gone += users(leased)
        world.settle(leased)
    assert gone == [f"old{n}" for n in range(5)]
    assert sorted(world.drain(apns=9)) == [f"new{n}" for n in range(5)]


def test_the_other_routes_wait_for_nobody(world: World) -> None:
    """Behind 100 that wait for one route, what goes by the other is given out at once."""
    world.producer.send_many(note(f"a{n}") for n in range(100))
    world.producer.send_many(note(f"f{n}", "Hello", fcm(f"f{n}")) for n in range(5))
    gone: list[str] = []
    for _ in range(4):
        gone += users(world.take(apns=0, fcm=50))
    assert gone == [f"f{n}" for n in range(5)]


def test_the_urgent_lane_goes_first_and_no_lane_starves(world: World) -> None:
    """Of what waits for room the urgent goes before 200 of bulk, and bulk keeps a share."""
    world.producer.send_many(note(f"b{n}", category="marketing") for n in range(200))
    while world.take(apns=0) or world.redis.llen("rq:queue:bulk"):
        pass
    world.producer.send_many(note(f"c{n}", category="chat") for n in range(60))
    while world.take(apns=0) or world.redis.llen("rq:queue:urgent"):
        pass
    leased = users(world.take(apns=20))
    assert len(leased) == 20
    assert 16 <= sum(user.startswith("c") for user in leased) <= 18


def test_no_lane_of_a_user_starves(world: World) -> None:
    """Of one user's messages the urgent go first, and every eighth is one of the lower lane."""
    for category, count in (("marketing", 3), ("chat", 20)):
        world.producer.send_many([note("ann", category=category)] * count)
        assert world.take(apns=0) == []
    gone = []
    while leased := world.take(apns=1):
        gone += [each.category for each in leased]
        world.settle(leased)
    assert [place for place, category in enumerate(gone) if category == "marketing"] == [7, 15, 22]


@pytest.mark.parametrize("waits", [False, True])
def test_one_that_a_worker_had_gives_way_to_nobody(world: World, waits: bool) -> None:
    """It may have been shown: a newcomer with its collapse id waits behind it. Of newcomers one goes."""
    same = note("ann", category="comments", collapse_id="score")
    had = world.producer.send(same)
    if waits:
        assert world.take(apns=0) == []
    world.settle(world.take(apns=1), state="backlog")
    _, newest = world.producer.send(same), world.producer.send(same)
    assert world.take(apns=0) == []
    gone = []
    while leased := world.take(apns=1):
        gone += [each.job_id for each in leased]
        world.settle(leased)
    assert gone == [had, newest]


def test_another_worker_takes_what_this_one_has_no_room_for(world: World) -> None:
    """What waits is everybody's: also of a worker that was never limited, or that the first never comes back to."""
    world.producer.send_many(note(f"u{n}") for n in range(10))
    assert len(world.take("one", apns=2)) == 2
    assert len(world.take("two", apns=3)) == 3
    assert len(world.take("three")) == 5
    assert world.take("three") == []
    assert world.redis.smembers("notifier:routes") == set()


def test_order_holds(world: World) -> None:
    """A user's notifications of a category go in their order, however little room there is."""
    sent = [world.producer.send(note("ann", f"n{n}")) for n in range(6)]
    ids = []
    for room in (1, 0, 2, 1, 0, 9):
        leased = world.take(apns=room)
        ids += [each.job_id for each in leased]
        world.settle(leased)
    ids += [each.job_id for each in world.take()]
    assert ids == sent


def test_one_with_many_devices_goes_where_there_is_room_for_any(world: World) -> None:
    """Three devices and room for one: it goes, or it never would; then there is none."""
    world.producer.send(note("ann", "Hello", apns("a"), apns("b"), apns("c")))
    world.producer.send(note("bob"))
    assert users(world.take(apns=1)) == ["ann"]
    assert users(world.take(apns=1)) == ["bob"]


def test_what_expires_meanwhile_is_given_out_as_expired(world: World) -> None:
    """No notification waits for room beyond its expiry."""
    world.producer.send(note("ann", expires_in=0.5))
    assert world.take(apns=0) == []
    (leased,) = eventually(lambda: world.take(apns=0), "its expiry")
    assert leased.left_us is not None
    assert leased.left_us <= 0


def test_it_is_shown_once_for_a_route(world: World) -> None:
    """How many wait in all lanes, and how many all workers may have under way."""
    world.producer.send_many(note(f"c{n}", category=("chat", "marketing")[n % 2]) for n in range(10))
    world.take(apns=1)
    world.redis.sadd("rq:workers", "rq:worker:one", "rq:worker:two", "rq:worker:old")
    world.redis.hset("rq:worker:one", LIMITS, '{"apns": 7, "fcm": 20}')
    world.redis.hset("rq:worker:two", LIMITS, '{"apns": 5}')
    assert exchange(world.redis, find_routes()) == [], "only a moment ago: the limit may be growing still"
    for name in ("urgent", "bulk"):
        world.redis.hincrby(f"notifier:route:apns|busy|{name}", "until", -BUSY_SHOWN_US)
    (shown,) = exchange(world.redis, find_routes())
    assert (shown.route, shown.state, shown.kind, shown.waiting, shown.at_once) == ("apns", "slow", "busy", 9, 12)


def test_what_waits_for_a_route_waits_for_it_when_a_gap_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another category of the user goes in the same look: that is no reason to look at the first anew."""
    categories = {category.name: category for category in CATEGORIES}
    gap = RuleTable(Policies(Policy((), gap_us=10_000_000), categories=categories), LANES)
    monkeypatch.setattr("tests.contract.test_busy.RULES", gap)
    world.producer.send(note("u", "busy", apns("u"), category="chat"))
    world.producer.send(note("u", "free", fcm("u"), category="marketing"))
    assert [each.category for each in world.take(apns=0)] == ["marketing"]
    assert world.redis.hgetall("notifier:waits") == {b"papns|busy|urgent": b"1"}


def test_nobody_waits_for_a_route_in_a_lane_that_was_left(world: World, tmp_path: Path) -> None:
    """Another process's file has a more urgent lane for the category: its backlog moves there with what waits."""
    (tmp_path / "other").mkdir()
    sooner = write_config(tmp_path / "other", world.url, categories={**YAML, "marketing": {"lane": "urgent"}})
    world.producer.send(note("ann", category="marketing"))
    assert world.take(apns=0) == []
    with notifier(sooner) as producer:
        producer.send(note("ann", category="marketing"))
    for _ in range(2):
        leased = world.take(lanes=("urgent",), apns=1)
        assert users(leased) == ["ann"]
        world.settle(leased)
    assert world.redis.keys("notifier:waiting_for_route:*") == []
