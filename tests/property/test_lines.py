"""Lines and gates: the Lua against its twin in memory, and both against what the plain model allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from model import violations
from world import LEASE, S, World

from notifier.policy import Category, Policies, Policy, Window

if TYPE_CHECKING:
    from redis import Redis

M = 60 * S
USERS = ("ann", "bob", "cy d}:chat")
CATEGORIES = {"chat": "urgent", "news": "default", "offers": "bulk", "default": "default", "left": "bulk"}

# Redis forgets by its own clock what the rules cannot ask for by the test's: no rule is shorter than a minute.
spans = st.one_of(st.sampled_from([M, 2 * M]), st.integers(M, 4 * M))
policies = st.builds(
    Policy,
    st.lists(st.builds(Window, st.integers(1, 4), spans), max_size=2).map(tuple),
    st.one_of(st.just(0), st.integers(M, 2 * M)),
)

never = st.just(value=False)
seldom = st.sampled_from([False, False, True])


@st.composite
def rule_sets(draw: st.DrawFn, bypass: st.SearchStrategy[bool]) -> Policies:
    """Rules for everyone, other ones for bob, and some categories; 'left' is no longer configured."""
    some = draw(st.sets(st.sampled_from(["chat", "news", "offers", "default"])))
    categories = {name: Category(name, policy=draw(policies), bypass=draw(bypass)) for name in sorted(some)}
    return Policies(draw(policies), users={"bob": draw(policies)}, categories=categories)


moments = st.one_of(st.sampled_from([1, S, LEASE - 1, LEASE, LEASE + 1, M]), st.integers(1, 3 * M))
enqueues = st.tuples(
    st.just("enqueue"),
    st.integers(1, 6),
    st.sampled_from(["ann", "ann", *USERS]),
    st.sampled_from([*CATEGORIES.items(), *CATEGORIES.items(), ("chat", "bulk"), ("offers", "urgent")]),
    seldom,
    st.one_of(st.none(), st.none(), st.none(), moments),
    st.one_of(st.just(0), st.just(0), st.just(0), moments),
)
outcomes = st.sampled_from(["delivered", "delivered", "delivered", "failed", "unknown", "later", "wait", "line"])
rounds = st.tuples(st.just("round"), st.sampled_from([1, 3, 50]), st.sampled_from([1, 2, 50]))
settles = st.tuples(st.just("settle"), st.integers(0, 9), outcomes, st.booleans(), moments)
steps = st.one_of(
    enqueues,
    enqueues,
    rounds,
    rounds,
    settles,
    settles,
    st.tuples(st.just("advance"), moments),
    st.tuples(st.just("cancel"), st.integers(0, 99)),
)
schedules = st.lists(steps, min_size=20, max_size=60)


def carry_out(world: World, verb: str, args: list[Any]) -> None:
    if verb == "enqueue":
        copies, user, (category, lane), high, expires_in_us, send_in_us = args
        for _ in range(copies):
            world.enqueue(user, category, lane, high=high, expires_in_us=expires_in_us, send_in_us=send_in_us)
    elif verb == "round":
        world.round(*args)
    elif verb == "advance":
        world.now += args[0]
    elif verb == "settle" and world.flights:
        settle(world, *args)
    elif verb == "cancel" and world.told:
        world.cancel(list(world.told)[args[0] % len(world.told)])


def settle(world: World, index: int, outcome: str, early: bool, wait_us: int) -> None:
    flight = world.flights[index % len(world.flights)]
    left = flight.leased.left_us
    if left is not None and left <= 0:
        world.settle(flight, "failed", reached=False, word="expired")
        return
    reached = outcome in ("delivered", "unknown")
    if reached:
        # A worker hands nothing over once its lease has ended; the answer may take any time.
        last = min(world.now, flight.until_us)
        world.received(flight, flight.since_us if early else last)
    if outcome == "delivered":
        world.settle(flight, "delivered", reached=True, word="delivered")
    elif outcome == "failed":
        world.settle(flight, "failed", reached=False, word="failed")
    elif outcome == "line":
        world.settle(flight, "line", reached=False)
    else:
        state = "wait" if outcome == "wait" else "later"
        world.settle(flight, state, reached=reached, word="retried", wait_us=wait_us)


def settle_all(world: World) -> None:
    """All that is in flight reaches its users; the workers that lost their lease learn it."""
    for flight in list(world.flights):
        settle(world, world.flights.index(flight), "delivered", early=False, wait_us=0)


def drain(world: World) -> None:
    """Work on until nothing waits, sleeping from one thing due to the next as an idle worker does."""
    for _ in range(40 + 6 * len(world.told)):
        if world.round() or world.flights:
            settle_all(world)
            continue
        pulled = world.pull()
        assert not pulled.users
        if pulled.next_us is None:
            return
        assert pulled.next_us > world.now
        world.now = pulled.next_us
    raise AssertionError("it never came to an end")


@given(rule_sets(seldom), schedules)
@settings(max_examples=120)
def test_every_schedule_ends_well(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Laws 1 to 5, at every step: Redis and twin agree, and the plain model agrees with both.

    Each job is in one place, none goes before the rules let it, none is told to wait longer than they say,
    each goes in its order, a lost lease changes nothing; and in the end every job has ended, once.
    """
    world = World(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
    drain(world)
    world.check()
    ended = [world.ended[word] for word in ("delivered", "failed", "expired", "cancelled")]
    assert sum(ended) == len(world.told)


@given(rule_sets(never), schedules)
@settings(max_examples=120)
def test_no_user_is_ever_burst(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Law 1, where it counts: what the provider received keeps every window and every gap.

    It may take each at any moment of its lease, also from a worker that dies and never tells.
    """
    world = World(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
    drain(world)
    for user, receipts in world.receipts.items():
        assert not violations(rules.for_user(user), [at for at, _ in receipts])
        for category in CATEGORIES:
            policy = rules.category(category).policy
            assert not violations(policy, [at for at, name in receipts if name == category])


@given(rule_sets(never), st.lists(enqueues, min_size=5, max_size=20))
@settings(max_examples=80)
def test_gates_open_at_the_first_moment_the_rules_admit(
    redis: Redis, rules: Policies, arrivals: list[tuple[Any, ...]]
) -> None:
    """Law 3: once all that is due is handled, each user's gate is exactly where the rules admit some head.

    So nothing is late, and no wake-up is for nothing: each look that finds nothing is a new line's first.
    """
    world = World(redis, rules)
    for verb, *args in arrivals:
        carry_out(world, verb, args)
    for _ in range(200):
        while world.round() or world.flights:
            settle_all(world)
        due = world.due_by_the_rules()
        assert {user: at for user, at in world.gates().items() if user in due} == due
        pulled = world.pull()
        if pulled.next_us is None:
            break
        world.now = pulled.next_us
    assert sum(world.ended.values()) == len(world.told)
    assert world.seen["dispatches"] == len(world.told)
