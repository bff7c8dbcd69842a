"""The pace of a category for all users together: the Lua against what the plain model allows."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.operations.explain import Inspection
from notifier.queue import backlogs
from notifier.rules.category import LANES, Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.store.connection import time_us
from notifier.units import moment
from tests.property.amount import examples
from tests.property.world import LEASE, START, Flight, S, World


@dataclass
class Paced(World):
    """A world in which `news` has a pace for all users. sent: when each of it went; ended_us: where it was received."""

    sent: list[tuple[int, str]] = field(default_factory=list)
    chat: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)

    def waiting_for_routes(self) -> set[str]:
        """Who waits for the pace."""
        return {member.decode() for member in self.redis.zrange("notifier:waiting_for_route:overall:news|full", 0, -1)}

    def _dispatched(self, flight: Flight, waiting: dict[tuple[str, str], list[str]]) -> None:
        super()._dispatched(flight, waiting)
        if flight.leased.category == "news":
            self.sent.append((self.now, flight.leased.user))
        else:
            self.chat.append(self.now)

    def end(self, flight: Flight, *, reached: bool = True) -> None:
        """Settle: what reached nobody is tried again at once, in its place."""
        if reached and flight.leased.category == "news":
            self.received.append(self.now)
        self.settle(flight, "delivered" if reached else "backlog", reached=reached, word="delivered" * reached)

    def next_due(self) -> int:
        """The µs of the next thing due, or of the first answer that is outstanding, a second after its send."""
        due = self.pull().next_us
        times = [flight.since_us + S for flight in self.flights] + ([due] if due is not None else [])
        return max(self.now, min(times))

    def change(self, rules: Policies) -> None:
        """Let these rules hold from now on, as a worker does that takes up a file."""
        self.policies, self.rules = rules, RuleTable(rules)
        for lane in LANES:
            assert run(self.redis, backlogs.retime(lane, "0", max_users=1000, clock=str(self.now))) == "0"


def rules_of(overall: Window | None, cost: int = 1) -> Policies:
    """`news` at this pace for all; `chat` is free."""
    news = Category("news", "default", Policy(), cost=cost, overall=overall)
    return Policies(Policy(), categories={"news": news, "chat": Category("chat", "urgent")})


def most_in(received: list[int], interval_us: int) -> int:
    """The most that was received in any half-open interval, by brute force."""
    return max((sum(end - interval_us < at <= end for at in received) for end in received), default=0)


@given(
    st.builds(Window, st.integers(1, 5), interval_us=st.integers(S, 20 * S)),
    st.integers(1, 2),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 3 * S), st.booleans()), min_size=30, max_size=30),
)
@settings(max_examples=examples(60))
@example(Window(1, interval_us=20 * S), 1, [6, 6], [(0, True)])
def test_no_window_over_all_users_is_ever_exceeded(
    redis: Redis, overall: Window, cost: int, counts: list[int], answers: list[tuple[int, bool]]
) -> None:
    """Laws 1 and 2 over all users, where the provider received it; other categories wait for nothing."""
    world = Paced(redis, rules_of(overall, cost))
    for n, count in enumerate(counts):
        for _ in range(count):
            world.enqueue(f"u{n}", "news", "default")
    world.round()
    for n, _ in enumerate(counts):
        world.enqueue(f"u{n}", "chat", "urgent")
    world.round()
    assert world.chat == [START] * len(counts)
    most_each = overall.interval_us // S + 3  # rounds of a second, until one goes after another and is answered
    for after_us, reached in [*answers, *[(0, True)] * (sum(counts) * most_each)]:
        if world.ended["delivered"] == sum(counts) + len(counts):
            break
        while world.round():
            pass
        world.now = max(world.now, min(world.next_due(), world.now + S) + after_us)
        for flight in [f for f in world.flights if not f.lost and f.since_us + S <= world.now]:
            world.end(flight, reached=reached or flight.leased.category == "chat")
    assert world.ended["delivered"] == sum(counts) + len(counts)
    assert most_in(world.received, overall.interval_us) <= overall.limit


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=examples(40))
@example(2, 3, 5)
@example(5, 5, 5)
@example(4, 3, 3)
def test_users_take_turns_and_nobody_waits_longer_than_the_pace(
    redis: Redis, limit: int, users: int, each: int
) -> None:
    """Law 3: where answers take no time, one goes whenever the pace admits it. Of users who wait each has its turn."""
    world = Paced(redis, rules_of(Window(limit, interval_us=S)))
    for _ in range(each):
        for n in range(users):
            world.enqueue(f"u{n}", "news", "default")
    for _ in range(users * each):
        while world.round():
            for flight in list(world.flights):
                world.end(flight)
        if len(world.sent) < users * each:
            world.now = world.next_due()
    assert [at for at, _ in world.sent] == [START + n // limit * S for n in range(users * each)]
    waiting = Counter(user for at, user in world.sent if at > START)  # until then nobody has waited
    in_turn: set[str] = set()
    for at in sorted({at for at, _ in world.sent if at > START}):
        going = Counter(user for sent_at, user in world.sent if sent_at == at)
        while going:
            in_turn = in_turn or set(waiting)
            now = Counter(in_turn & set(going))
            assert now, "somebody goes once more before all others that wait have gone"
            in_turn, going, waiting = in_turn - set(now), going - now, waiting - now


@pytest.mark.parametrize("cost", [1, 2, 10])
def test_the_pace_counts_messages_whatever_they_cost(redis: Redis, cost: int) -> None:
    """Law 3: six a second are six messages a second, also where each counts twice for its user."""
    world = Paced(redis, rules_of(Window(6, interval_us=S), cost))
    for n in range(12):
        world.enqueue(f"u{n}", "news", "default")
    while len(world.sent) < 12:
        while world.round():
            for flight in list(world.flights):
                world.end(flight)
        world.now = world.next_due() if len(world.sent) < 12 else world.now
    assert [at for at, _ in world.sent] == [START] * 6 + [START + S] * 6


def test_who_comes_later_does_not_go_before_who_waits(redis: Redis) -> None:
    """The next that the pace admits is of the user who has waited longest, however many come meanwhile."""
    world = Paced(redis, rules_of(Window(1, interval_us=S)))
    for user in ("ann", "bob", "eve"):
        world.enqueue(user, "news", "default")
        world.round()
        for flight in list(world.flights):
            world.end(flight)
    for n in range(1, 4):
        world.now = START + n * S
        world.enqueue(f"new{n}", "news", "default")
        while world.round():
            for flight in list(world.flights):
                world.end(flight)
    assert [user for _, user in world.sent] == ["ann", "bob", "eve", "new1"]


def test_what_reached_nobody_gives_its_place_back_at_once(redis: Redis) -> None:
    """A refused send counts for nobody: the next user is looked at now, not an interval later."""
    world = Paced(redis, rules_of(Window(1, interval_us=100 * S)))
    for user in ("ann", "bob"):
        world.enqueue(user, "news", "default")
        world.round()
    (flight,) = world.flights
    world.now += S
    world.settle(flight, "failed", reached=False, word="failed")
    assert world.round() == 1
    assert [user for _, user in world.sent] == ["ann", "bob"]


def test_a_new_pace_holds_for_what_waits(redis: Redis) -> None:
    """Law 7: at 1 an hour ten wait; at 5 a second they go within two; without a pace, at once."""
    world = Paced(redis, rules_of(Window(1, interval_us=3600 * S)))
    for n in range(20):
        world.enqueue(f"u{n:02}", "news", "default")
    world.round()
    assert len(world.sent) == 1
    world.end(world.flights[0])
    world.now += 10 * S
    world.change(rules_of(Window(5, interval_us=S)))
    while world.round():
        pass
    assert len(world.sent) == 6
    world.change(rules_of(None))
    while world.round():
        pass
    assert len(world.sent) == 20


def test_a_dead_workers_sends_count_until_they_are_known(redis: Redis) -> None:
    """What was in flight with a worker that died counts to the end of its lease, and then as its orphan does."""
    world = Paced(redis, rules_of(Window(2, interval_us=S)))
    for n in range(4):
        world.enqueue(f"u{n}", "news", "default")
    world.round()
    assert len(world.sent) == 2
    world.now += LEASE
    world.pull()
    assert redis.zcount("notifier:overall:news", world.now - S + 1, "+inf") == 2


def test_the_look_that_finds_it_used_up_says_when_it_opens(redis: Redis) -> None:
    """Its worker may sleep until then: nobody else tells it."""
    world = Paced(redis, rules_of(Window(1, interval_us=5 * S)))
    world.enqueue("u0", "news", "default")
    world.round()
    world.end(world.flights[0])
    world.enqueue("u1", "news", "default")
    assert world.pull().next_us == world.now + 5 * S


def test_a_clock_that_is_set_back_holds_nobody_for_the_step(redis: Redis) -> None:
    """What was sent an hour ahead may be in flight: it counts for as long as a lease lasts, and then as a send."""
    world = Paced(redis, rules_of(Window(3, interval_us=5 * S)))
    for n in range(6):
        if n == 3:
            world.round()
            for flight in list(world.flights):
                world.end(flight)
            stepped = world.now = START - 3600 * S
        world.enqueue(f"u{n}", "news", "default")
    world.round()
    while len(world.sent) < 6:
        world.now = world.next_due()
        world.round()
    assert [at - stepped for at, _ in world.sent[3:]] == [LEASE + 5 * S] * 3


def test_a_send_in_flight_when_the_clock_is_set_back_counts_until_it_is_received(redis: Redis) -> None:
    """It is not over yet, whatever its date says: it has its place until it is settled, and from then on."""
    world = Paced(redis, rules_of(Window(1, interval_us=5 * S)))
    for n in range(2):
        world.enqueue(f"u{n}", "news", "default")
    world.round()
    world.now -= 3600 * S
    world.round()
    stepped = world.now
    world.now = stepped + 6 * S
    assert world.round() == 0
    world.end(world.flights[0])
    world.now += 5 * S - 1
    assert world.round() == 0
    world.now += 1
    assert world.round() == 1


def test_each_partition_has_its_share(redis: Redis) -> None:
    """Of 10 a second each of four partitions admits two, and so they never exceed it together."""
    world = Paced(redis, rules_of(Window(10, interval_us=S)))
    world.rules = RuleTable(world.policies, partitions=4)
    for n in range(5):
        world.enqueue(f"u{n}", "news", "default")
    while world.round():
        pass
    assert len(world.sent) == 2


def test_a_category_that_bypasses_has_no_pace(redis: Redis) -> None:
    """What is never held back is not held back by a pace either."""
    rules = rules_of(Window(1, interval_us=S))
    news = replace(rules.categories["news"], bypass=True)
    world = Paced(redis, Policies(Policy(), categories={"news": news}))
    for n in range(3):
        world.enqueue(f"u{n}", "news", "default")
    world.round()
    assert len(world.sent) == 3


@given(
    limit=st.integers(1, 6),
    cost=st.integers(1, 4),
    partitions=st.integers(1, 3),
    used=st.lists(st.integers(1, 50), max_size=8, unique=True),
)
@settings(max_examples=examples(60))
def test_what_is_told_is_when_workers_let_one_go(
    redis: Redis, limit: int, cost: int, partitions: int, used: list[int]
) -> None:
    """The pace of all, and a window of the user's, each in its row and together: by the cost; as one, of a share."""
    redis.flushdb()
    cost, minute = min(cost, limit), Window(limit, interval_us=60 * S)
    news = Category("news", "default", Policy((minute,)), cost=cost, overall=minute)
    policies, now = Policies(Policy(), categories={"news": news}), time_us(redis)
    sends = {str(n): now - ago * S for n, ago in enumerate(used)}
    for key in ("notifier:overall:news", "notifier:sent:{ann}:news") if sends else ():
        redis.zadd(key, sends)
    told = Inspection(redis, policies, "ann", partitions).explain("news")
    share = max(1, limit // partitions)

    def opens(most: int, costs: int) -> datetime | None:
        counts = sorted(sends.values(), reverse=True)[most - costs :]
        return moment(counts[0] + 60 * S) if counts else None

    assert [use.free_at for use in told.uses] == [opens(limit, cost), opens(share, 1)]
    assert told.next_at == max(filter(None, [opens(limit, cost), opens(share, 1)]), default=None)
    assert told.uses[1].limit == share
    of_one = f", the share of one of {partitions} partitions" if partitions > 1 else ""
    assert told.uses[1].rule == f"overall {minute}{of_one}"
