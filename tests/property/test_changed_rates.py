"""Law 7: rules that change at any moment, in Redis and in the plain model, side by side."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Permit
from notifier.queue import backlogs
from notifier.rules.category import Category
from notifier.rules.evaluator import Sends
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.asking import InMemory
from tests.property.amount import examples
from tests.property.test_backlogs import CATEGORIES, M, carry_out, drain, enqueues, rounds, settle_all, settles, spans
from tests.property.world import LANES, START, Flight, S, World

# The limiter keeps of the past what the rules in force can ask for. So that no change asks for more, all of them here
# have a window of this length, the longest.
HORIZON = 4 * M

policies = st.builds(
    lambda longest, others, gap_us: Policy((Window(longest, interval_us=HORIZON), *others), gap_us),
    st.integers(1, 8),
    st.lists(st.builds(Window, st.integers(1, 4), interval_us=spans), max_size=1),
    st.one_of(st.just(0), st.integers(M, 2 * M)),
)


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Rules for everyone, others for bob, and for every category but one, which follows `default`."""
    categories = {name: Category(name, policy=draw(policies)) for name in CATEGORIES if name != "left"}
    return Policies(draw(policies), users={"bob": draw(policies)}, categories=categories)


@dataclass
class Changing(World):
    """A world whose rules change. sent: what was admitted, in order, and by which rules; received: permit -> µs."""

    sent: list[tuple[Flight, Policies]] = field(default_factory=list)
    received_us: dict[str, int] = field(default_factory=dict)

    def change(self, rules: Policies) -> None:
        """Let these rules hold from now on, as a worker does that takes up a file: the wake-ups open once."""
        self.policies = rules
        self.rules = RuleTable(rules)
        for lane in LANES:
            cursor = "0"
            while (cursor := run(self.redis, backlogs.retime(lane, cursor, max_users=100, clock=str(self.now)))) != "0":
                pass

    def _dispatched(self, flight: Flight, waiting: dict[tuple[str, str], list[str]]) -> None:
        super()._dispatched(flight, waiting)
        self.sent.append((flight, self.policies))

    def received(self, flight: Flight, at_us: int) -> None:
        super().received(flight, at_us)
        self.received_us[flight.leased.permit] = at_us


def violations(at_us: int, policy: Policy, before: list[int]) -> list[str]:
    """How one receipt breaks the policy by which it was admitted, beside those that were admitted before it."""
    found = [f"{abs(at_us - t)} µs from another" for t in before if abs(at_us - t) < policy.gap_us]
    for window in policy.windows:
        for end in (t for t in [*before, at_us] if at_us <= t < at_us + window.interval_us):
            inside = sum(end - window.interval_us < t <= end for t in [*before, at_us])
            if inside > window.limit:
                found.append(f"{inside} in a window {window}")
    return found


steps = st.one_of(
    enqueues,
    enqueues,
    rounds,
    rounds,
    settles,
    settles,
    st.tuples(st.just("advance"), st.integers(1, 2 * M)),
    st.tuples(st.just("change"), st.integers(0, 2)),
)


@given(st.lists(rule_sets(), min_size=3, max_size=3), st.lists(steps, min_size=20, max_size=50))
@settings(max_examples=examples(40))
def test_each_send_keeps_the_rules_it_was_admitted_by(
    redis: Redis, rules: list[Policies], schedule: list[tuple[Any, ...]]
) -> None:
    """Law 1 for the rules in force at each send, whenever they change, back and forth: where the provider received it.

    And laws 2 to 5 at every step: Redis and model agree, also on how long each must wait; nothing is lost,
    doubled or overtaken.
    """
    world = Changing(redis, rules[0])
    for verb, *args in schedule:
        if verb == "change":
            world.change(rules[args[0]])
        carry_out(world, verb, args)
        world.check()
    drain(world)
    world.check()
    assert sum(world.ended[word] for word in ("delivered", "failed", "expired", "cancelled")) == len(world.told)
    before: dict[tuple[str, str], list[int]] = {}
    for flight, in_force in world.sent:
        leased, at_us = flight.leased, world.received_us.get(flight.leased.permit)
        if at_us is None:
            continue
        own = in_force.category(leased.category).policy
        for scope, policy in (("", in_force.for_user(leased.user)), (leased.category, own)):
            earlier = before.setdefault((leased.user, scope), [])
            assert not violations(at_us, policy, earlier)
            earlier.append(at_us)


@given(policies, policies, st.integers(1, 20), st.integers(0, 10 * M))
@settings(max_examples=examples(60))
def test_a_backlog_follows_the_new_rules_from_the_moment_of_the_change(
    redis: Redis, old: Policy, new: Policy, count: int, after_us: int
) -> None:
    """Law 3 under law 7: each goes at the first µs that the rules in force then allow, in order, each once."""
    world = Changing(redis, Policies(old))
    for _ in range(count):
        world.enqueue("ann", "chat", "urgent")
    times = drained(world, Policies(new), START + after_us)
    assert times == ideal(old, new, count, START + after_us)
    assert [flight.leased.job_id for flight, _ in world.sent] == sorted(world.told)
    assert world.ended == {"delivered": count}


kinds = st.builds(
    lambda longest, precision_us, others, gap_us: Policy(
        (Window(longest, interval_us=HORIZON, precision_us=precision_us), *others), gap_us
    ),
    st.integers(3, 30),
    st.sampled_from([0, S, 20 * S, M]),
    st.lists(
        st.builds(Window, st.integers(2, 6), interval_us=spans, precision_us=st.sampled_from([0, S, 20 * S])),
        max_size=2,
    ),
    st.sampled_from([0, 0, 5 * S]),
)
waits = st.one_of(st.just(0), st.integers(0, 10 * S), st.integers(0, 2 * M))


@given(
    st.lists(kinds, min_size=2, max_size=4), st.lists(st.tuples(waits, st.integers(0, 30)), min_size=30, max_size=150)
)
@settings(max_examples=examples(100))
def test_what_was_counted_in_one_way_counts_in_the_other(rules: list[Policy], asked: list[tuple[int, int]]) -> None:
    """Law 1 for the rules in force, where windows become bucketed and exact again: nothing sent before is forgotten."""
    now, policy, sent = START, rules[0], list[int]()
    limiter = InMemory(lambda: now)
    for wait_us, n in asked:
        now += wait_us
        policy = rules[n] if n < len(rules) else policy
        if isinstance(limiter.acquire("ann", policy), Permit):
            assert not violations(now, policy, sent)
            sent.append(now)


def test_one_a_minute_becomes_ten_a_minute(redis: Redis) -> None:
    """Thirty that wait at 1/minute: half a minute after the first, nine more go at once, and then ten a minute."""
    world = Changing(redis, Policies(Policy((Window(1, interval_us=M),))))
    for _ in range(30):
        world.enqueue("ann", "chat", "urgent")
    times = drained(world, Policies(Policy((Window(10, interval_us=M),))), START + 30 * S)
    seconds = [(at - START) // S for at in times]
    assert seconds == [0, *[30] * 9, 60, *[90] * 9, 120, *[150] * 9]


def drained(world: Changing, new: Policies, change_us: int) -> list[int]:
    """When each went, by workers that sleep from one thing due to the next and take up the new rules when they come."""
    times: list[int] = []
    changed = False
    while len(world.sent) < len(world.told):
        if taken := world.round():
            times += [world.now] * taken
            settle_all(world)
            continue
        due = world.pull().next_us
        assert due is not None
        assert due > world.now
        if not changed and due >= change_us:
            changed, world.now = True, max(world.now, change_us)
            world.change(new)
        else:
            world.now = due
    return times


def ideal(old: Policy, new: Policy, count: int, change_us: int) -> list[int]:
    """When each would go at the earliest."""
    sends, policy, times, now = Sends(), old, list[int](), START
    while len(times) < count:
        at = max(now, sends.opens(policy)[0])
        if policy is old and at >= change_us and at > now:
            policy, now = new, max(now, change_us)
            continue
        now = at
        times.append(now)
        sends.add(policy, str(len(times)), now, now)
    return times
