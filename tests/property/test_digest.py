"""Digests: the Lua against the plain model, and against what was said to happen."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.rules.category import Category, Digest
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from tests.property.amount import examples
from tests.property.test_backlogs import CATEGORIES, M, carry_out, drain, policies, schedules, settle_all
from tests.property.world import LEASE, S, World

ENDS = ("delivered", "failed", "expired", "cancelled", "superseded")


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Some categories have digests."""
    digests = st.builds(Digest, st.integers(2, 5), st.integers(S, 3 * M), st.none(), st.just("{count}"))
    categories = {
        name: Category(name, policy=draw(policies), when_blocked="digest", digest=draw(digests))
        for name in sorted(CATEGORIES)
        if draw(st.booleans())
    }
    return Policies(draw(policies), categories=categories)


@given(rule_sets(), schedules)
@settings(max_examples=examples(60))
def test_every_digest_ends_well(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Laws 1, 2 and 4: what is summed up ends once, as superseded, and nothing waits for ever."""
    world = World(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
    drain(world)
    world.check()
    assert sum(world.ended[word] for word in ENDS) == len(world.told)


def test_they_gather_until_there_are_enough_or_it_is_time(redis: Redis) -> None:
    """The first goes at once; the next, held back by a gap of two minutes, gather for five, or until there are four."""
    digest = Digest(4, 5 * M, None, "{count}")
    chat = Category("chat", "urgent", when_blocked="digest", digest=digest)
    world = World(redis, Policies(Policy(gap_us=2 * M), categories={"chat": chat}))
    begun, sent = world.now, []

    def work_until(minute: int) -> None:
        while True:
            while world.round():
                sent.extend(((world.now - begun) // M, flight.leased.stands_for) for flight in world.flights)
                settle_all(world)
            due = world.pull().next_us
            if due is None or due > begun + minute * M:
                break
            world.now = due
        world.now = begun + minute * M

    for minute, come in ((0, 1), (0, 1), (3, 1), (7, 1), (8, 1), (9, 3), (30, 0)):
        work_until(minute)
        for _ in range(come):
            world.enqueue("ann", "chat", "urgent")
    # At 5 the two are summed up; the one of 7 finds nothing waiting; that of 8 waits a moment, until there are four.
    assert sent == [(0, 1), (5, 2), (7, 1), (9, 4)]
    world.check()


@pytest.mark.parametrize("how", ["retry", "dead worker"])
def test_what_comes_back_does_not_wait_for_the_digest_behind_it(redis: Redis, how: str) -> None:
    """Law 3: one that a worker has had goes at its own time, also where others gather behind it for an hour."""
    digest = Digest(5, 60 * M, None, "{count}")
    chat = Category("chat", "urgent", Policy(gap_us=S), when_blocked="digest", digest=digest)
    world = World(redis, Policies(categories={"chat": chat}))
    world.enqueue("ann", "chat", "urgent")
    assert world.round() == 1
    world.enqueue("ann", "chat", "urgent")
    assert world.round() == 0
    if how == "retry":
        assert world.settle(world.flights[0], "later", reached=False, wait_us=5 * S)
    world.now += 5 * S if how == "retry" else LEASE
    world.round()
    world.now += 2 * S
    world.round()
    assert world.flights[-1].leased.job_id == "job0000"
    assert world.seen["dispatches"] == 2
    world.check()
