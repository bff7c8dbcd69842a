"""Bucketed windows and bursts: each against what it is to be, and the Lua against the limiter in memory."""

import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Hold, Permit
from notifier.operations.audit.permits import Permits
from notifier.rules.category import Category
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Burst, Policy, Window
from tests.harness.asking import InMemory, InRedis
from tests.harness.support import expire_alike
from tests.property import kinds
from tests.property.amount import examples
from tests.property.model import violations
from tests.property.test_backlogs import carry_out, drain, schedules, settle
from tests.property.world import LEASE, World

START = 1_700_000_000_000_000
S = 1_000_000
M = 60 * S
buckets = st.builds(
    Window,
    st.integers(3, 25),
    interval_us=st.sampled_from([M, 3 * M, 10 * M]),
    precision_us=st.sampled_from([S, 20 * S, M]),
)
exact = st.builds(Window, st.integers(3, 8), interval_us=st.sampled_from([M, 2 * M]))
bursts = st.builds(Burst, st.integers(3, 6), every_us=st.sampled_from([3 * S, 20 * S, M]))
policies = kinds.policies(
    st.lists(st.one_of(buckets, buckets, exact), min_size=1, max_size=3).map(tuple),
    st.sampled_from([0, 0, 5 * S]),
    kinds.others(5 * S, min_limit=3),
)
steps = st.one_of(st.just(0), st.integers(0, 8 * S), st.integers(0, 8 * S), st.integers(0, 2 * M))
acts = st.tuples(st.sampled_from(["take", "take", "take", "cost", "refund", "rules", "back"]), steps, st.integers(0, 9))


@given(st.lists(policies, min_size=1, max_size=3), st.lists(acts, min_size=20, max_size=90))
@settings(max_examples=examples(60))
def test_both_limiters_give_the_same_answers(
    redis: Redis, rules: list[Policy], script: list[tuple[str, int, int]]
) -> None:
    """Whatever the rules are, however they change, and wherever the clock is set: one answer, one time left."""
    redis.flushdb()
    now, policy = START, rules[0]
    of_redis, of_memory = InRedis(redis), InMemory(lambda: now)
    permits: list[tuple[Permit, Permit]] = []
    for verb, step, n in script:
        now += step
        of_redis.clock = str(now)
        if verb == "refund" and permits:
            one, other = permits.pop(n % len(permits))
            assert of_redis.refund(one) == of_memory.refund(other)
        elif verb == "rules":
            policy = rules[n % len(rules)]
        elif verb == "back":
            now -= 4 * step
        else:
            expire_alike(redis, of_memory, now)
            cost = 1 + n % 3 if verb == "cost" else 1
            first, second = of_redis.acquire("ann", policy, cost=cost), of_memory.acquire("ann", policy, cost=cost)
            if isinstance(first, Permit) and isinstance(second, Permit):
                permits.append((first, second))
            else:
                assert first == second
    assert of_redis.known("ann") == of_memory.known("ann")


@given(st.lists(buckets, min_size=1, max_size=2).map(tuple), st.lists(steps, min_size=30, max_size=150))
@settings(max_examples=examples(80))
def test_a_bucketed_window_is_never_looser_than_exact_and_at_most_one_bucket_stricter(
    windows: tuple[Window, ...], waits: list[int]
) -> None:
    """A send may count for longer than its interval, by the width of a bucket at the most, and never for less."""
    policy = Policy(windows)
    sends: list[int] = []
    now = START
    limiter = InMemory(lambda: now)
    for wait in waits:
        now += wait
        answer = limiter.acquire("ann", policy)
        at = now + answer.time_left_us if isinstance(answer, Hold) else now
        full = [window for window in windows if len(sends) >= window.limit]
        earliest = max((sends[-window.limit] + window.interval_us for window in full), default=0)
        assert max(now, earliest) <= at <= max(now, earliest + policy.precision_us)
        if isinstance(answer, Permit):
            sends.append(now)


@given(bursts, st.lists(st.tuples(steps, st.integers(1, 3), st.integers(0, 3)), min_size=10, max_size=60))
@settings(max_examples=examples(100))
def test_a_burst_is_a_token_bucket(redis: Redis, burst: Burst, waits: list[tuple[int, int, int]]) -> None:
    """Full at first; each send takes one out; one comes back each interval, while there is room; none goes without.

    But what bypasses the rules: it takes what there is.
    """
    redis.flushdb()
    now, tokens = START, burst.limit * burst.every_us  # counted in the µs that each takes to come back
    user = Policy(burst=burst)
    of_redis, of_memory = InRedis(redis), InMemory(lambda: now)
    for wait, cost, n in waits:
        now += wait
        of_redis.clock = str(now)
        tokens = min(tokens + wait, burst.limit * burst.every_us)
        rules = Rules(user, Category("alarm", bypass=n == 0))
        answers = [limiter.acquire("ann", rules, cost=cost) for limiter in (of_redis, of_memory)]
        lacking = cost * burst.every_us - tokens
        if lacking > 0 and n:
            assert answers == [Hold(lacking, f"user {burst}")] * 2
        else:
            assert all(isinstance(answer, Permit) for answer in answers)
            tokens = max(0, tokens - cost * burst.every_us)


@given(
    st.integers(60, 100),
    st.lists(st.tuples(st.sampled_from([0, 1, 5 * S, 5 * S, 10 * S]), st.integers(0, 100)), min_size=3, max_size=12),
)
@settings(max_examples=examples(100))
def test_a_large_burst_forgets_no_send_that_shares_its_microsecond(
    redis: Redis, capacity: int, script: list[tuple[int, int]]
) -> None:
    """However many came in one microsecond, and however many are gone through at once: a token bucket, in both."""
    redis.flushdb()
    burst, now = Burst(capacity, every_us=S // 5), START
    of_redis, of_memory = InRedis(redis), InMemory(lambda: now)
    tokens = most = burst.limit * burst.every_us
    for step, n in script:
        now, tokens = now + step, min(tokens + step, most)
        of_redis.clock, cost = str(now), n % capacity or max(1, tokens // burst.every_us)
        answers = [limiter.acquire("ann", Policy(burst=burst), cost=cost) for limiter in (of_redis, of_memory)]
        lacking = cost * burst.every_us - tokens
        if lacking > 0:
            assert answers == [Hold(lacking, f"user {burst}")] * 2
        else:
            assert all(isinstance(answer, Permit) for answer in answers)
            tokens -= cost * burst.every_us


long_buckets = st.builds(
    Window, st.integers(2, 12), interval_us=st.sampled_from([M, 4 * M]), precision_us=st.sampled_from([S, 20 * S, M])
)
waiting = kinds.policies(st.lists(long_buckets, max_size=2).map(tuple), st.just(0), kinds.others(M, min_limit=2))


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Rules for everyone, and other ones for bob and the chat."""
    return Policies(
        draw(waiting),
        users={"bob": draw(waiting)},
        categories={"chat": Category("chat", policy=draw(waiting), cost=draw(st.sampled_from([1, 1, 2])))},
    )


@given(rule_sets(), schedules)
@settings(max_examples=examples(80))
def test_no_user_is_ever_burst_by_what_waits(redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]]) -> None:
    """Law 1, where it counts: what the provider received keeps each burst and each window.

    It may take each at any moment of its lease, also from a worker that dies and never tells.
    And no step holds anything back for longer than the limiter says.
    """
    world = World(redis, rules)
    for verb, *args in schedule:
        carry_out(world, verb, args)
        world.check()
    drain(world)
    for user, receipts in world.receipts.items():
        sends = [(at, name) for at, name in receipts for _ in range(rules.category(name).cost)]
        assert not violations(rules.for_user(user), [at for at, _ in sends])
        assert not violations(rules.category("chat").policy, [at for at, name in sends if name == "chat"])


def test_a_burst_counts_the_sends_of_the_dead_once(redis: Redis) -> None:
    """Law 3: two that a dead worker had in flight, found one by one, count as two: of three, one more goes at once."""
    world = World(redis, Policies(Policy(burst=Burst(3, every_us=M))))
    for _ in range(2):
        world.enqueue("ann", "chat", "default")
    assert world.round() == 2
    world.now += LEASE + 1
    assert world.round(1) == 1
    world.check()


def test_a_cost_is_settled_refunded_and_audited_whole(redis: Redis) -> None:
    """A permit of cost 3 takes three places, all in flight until it is settled, and gives all back."""
    rules = Policies(Policy((Window(4, interval_us=M),)), categories={"chat": Category("chat", cost=3)})
    world = World(redis, rules, now=time.time_ns() // 1_000 + M)  # the audit looks at what is in the future
    for _ in range(2):
        world.enqueue("ann", "chat", "default")
    assert world.round() == 1
    until = {at for _, at in redis.zrange("notifier:sent:{ann}", 0, -1, withscores=True)}
    assert (redis.zcard("notifier:sent:{ann}"), until) == (3, {world.now + LEASE})
    permits = Permits(redis)
    assert not [*permits.look_at([b"notifier:sent:{ann}"]), *permits.suspects()]
    settle(world, 0, "delivered", early=False, wait_us=0)
    assert {at for _, at in redis.zrange("notifier:sent:{ann}", 0, -1, withscores=True)} == {world.now}
    assert world.round() == 0
    world.now += M
    assert world.round() == 1
    world.now += 1
    settle(world, 0, "failed", early=False, wait_us=0)
    assert redis.zcount("notifier:sent:{ann}", world.now - M // 2, "+inf") == 0
