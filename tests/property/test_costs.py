"""Costs: the limiters against counting; permits cost any number, cost another later, or are given back."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Hold, Limiter, MemoryLimiter, Permit
from notifier.rules.policy import Policy, Window
from tests.property.amount import examples
from tests.property.model import admits

START = 1_700_000_040_000_000
S = 1_000_000
SPANS = st.sampled_from([60 * S, 61 * S, 180 * S])
WINDOWS = st.builds(Window, st.integers(900_000, 1_000_000), interval_us=SPANS)
POLICIES = st.builds(Policy, st.lists(WINDOWS, min_size=1, max_size=2).map(tuple), st.sampled_from([0, 0, S, 45 * S]))
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 900_000)),
    st.tuples(st.just("ask"), st.integers(1, 3_000)),
    st.tuples(st.just("adjust"), st.integers(0, 9), st.integers(0, 1_200_000)),
    st.tuples(st.just("advance"), st.one_of(st.integers(1, 90 * S), st.sampled_from([1, S, 60 * S - 1, 60 * S]))),
)


@given(POLICIES, st.lists(STEPS, min_size=10, max_size=40))
@settings(max_examples=examples(300))
def test_every_cost_is_exact(redis: Redis, policy: Policy, steps: list[tuple[Any, ...]]) -> None:
    """Each answer and its time left are right by counting, and a permit adjusted is as if it had cost that."""
    redis.flushdb()
    now, sent = START, dict[int, tuple[int, int]]()
    limiters = Limiter(redis, namespace="n"), MemoryLimiter(lambda: now)
    permits: list[tuple[Permit, Permit]] = []
    for verb, *words in steps:
        limiters[0]._requests.clock = str(now)
        if verb == "advance":
            now += words[0]
        elif verb == "ask":
            answers = [limiter.acquire("k", policy, cost=words[0]) for limiter in limiters]
            sends, left = [*sent.values()], 0
            if isinstance(answers[0], Hold):
                left = answers[0].time_left_us
                assert answers[1] == answers[0]
                assert not admits(policy, sends, now + left - 1, words[0])
            assert admits(policy, sends, now + left, words[0])
            if not left:
                sent = {n: send for n, send in sent.items() if send[0] > now - policy.horizon_us}
                sent[len(permits)] = now, words[0]
                permits.append((answers[0], answers[1]))  # type: ignore[arg-type]
        elif words[0] < len(permits):
            index = len(permits) - 1 - words[0]
            found = [limiter.adjust(permit, words[1]) for limiter, permit in zip(limiters, permits[index], strict=True)]
            assert found[0] == found[1]
            if index in sent and sent[index][0] > now - policy.horizon_us:  # else it has lapsed
                assert found[0]
                sent[index] = sent[index][0], words[1]
                sent = {n: send for n, send in sent.items() if send[1]}


LONG = st.builds(Window, st.integers(260, 700), interval_us=st.sampled_from([600 * S, 900 * S]))
LONG_POLICIES = st.builds(Policy, st.lists(LONG, min_size=1, max_size=2).map(tuple))
FILLS = st.tuples(st.just("fill"), st.integers(60, 250), st.sampled_from([0, 1, 7_000, S]), st.integers(1, 2))
LONG_STEPS = st.one_of(
    FILLS,
    st.tuples(st.just("fill"), st.integers(1, 3), st.just(0), st.integers(1, 40)),
    st.tuples(st.just("adjust"), st.integers(0, 700), st.integers(0, 60)),
    st.tuples(st.just("adjust"), st.integers(0, 700), st.just(0)),
    st.tuples(st.just("reward"), st.integers(1, 250)),
    st.tuples(st.just("count"), st.integers(1, 900).map(lambda s: s * S)),
    st.tuples(st.just("advance"), st.sampled_from([1, S, 100 * S, 300 * S, 599 * S, 600 * S])),
)


@given(LONG_POLICIES, st.lists(FILLS, min_size=2, max_size=3), st.lists(LONG_STEPS, min_size=5, max_size=25))
@settings(max_examples=examples(60))
def test_hundreds_of_sends_are_exact(redis: Redis, policy: Policy, fills: list[Any], steps: list[Any]) -> None:
    """Where more are in the windows than stand beside each other in Redis, all answers are still right by counting."""
    redis.flushdb()
    now, sent = START, list[list[Any]]()  # each with its µs, its cost and its permit
    limiter = Limiter(redis, namespace="n")
    for verb, *words in fills + steps:
        limiter._requests.clock = str(now)
        if verb == "advance":
            now += words[0]
        elif verb == "fill":
            for _ in range(words[0]):
                limiter._requests.clock = str(now)
                answer = limiter.acquire("k", policy, cost=words[2])
                sends = [(at, cost) for at, cost, _ in sent if at > now - policy.horizon_us]
                left = answer.time_left_us if isinstance(answer, Hold) else 0
                assert admits(policy, sends, now + left, words[2])
                if isinstance(answer, Hold):
                    assert not admits(policy, sends, now + left - 1, words[2])
                    break
                sent.append([now, words[2], answer])
                assert answer.remaining == min(
                    each.limit - within(sent, now, each.interval_us) for each in policy.windows
                )
                now += words[1]
        elif verb == "count":
            span = min(words[0], policy.horizon_us)
            assert limiter.count("k", last=timedelta(microseconds=span)) == within(sent, now, span)
        elif verb == "reward":
            assert limiter.reward("k", words[0]) == reward(sent, words[0], now - policy.horizon_us)
        elif words[0] < len(sent) and sent[words[0]][0] > now - policy.horizon_us:
            assert limiter.adjust(sent[words[0]][2], words[1]) == (sent[words[0]][1] > 0)
            if sent[words[0]][1]:
                sent[words[0]][1] = words[1]


def reward(sent: list[list[Any]], cost: int, after: int) -> int:
    """Take back so much of the latest; returns how much it was."""
    rest = cost
    for send in [send for send in reversed(sent) if send[1] and send[0] > after][:127]:
        less = min(rest, send[1])
        rest, send[1] = rest - less, send[1] - less
    return cost - rest


def within(sent: list[list[Any]], now: int, span: int) -> int:
    """How much was sent in a span that ends now."""
    return sum(cost for at, cost, _ in sent if now - span < at <= now)


SLOTS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(1, 2)),
    st.tuples(st.just("reserve"), st.integers(1, 2)),
    st.tuples(st.just("acquire"), st.integers(1, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("advance"), st.integers(1, 90 * S)),
)
# Redis forgets by its own clock what the rules cannot ask for by the test's: so no rule is short.
SMALL = st.sampled_from(
    [
        "2/100s",
        "3/100s; gap 10s",
        "gap 30s",
        "4/200s; 2/50s",
        "burst 2 then 1/30s",
        "3/90s; burst 2 then 1/20s",
    ]
)


@given(SMALL, st.lists(SLOTS, min_size=10, max_size=40))
@settings(max_examples=examples(600))
def test_reserved_moments_keep_every_rule(redis: Redis, rates: str, steps: list[tuple[Any, ...]]) -> None:
    """Whoever reserves, cancels and comes in between: no rule is broken, and both limiters give the same moments."""
    redis.flushdb()
    now = START
    limiters = Limiter(redis, namespace="n"), MemoryLimiter(lambda: now)
    policy = limiters[1].policy(rates)
    granted: list[tuple[Permit, Permit]] = []
    for verb, *words in steps:
        limiters[0]._requests.clock = str(now)
        if verb == "advance":
            now += words[0]
        elif verb == "cancel":
            ahead = [pair for pair in granted if pair[0].at_us > now]
            if words[0] < len(ahead):
                assert all(limiter.refund(one) for limiter, one in zip(limiters, ahead[words[0]], strict=True))
                granted.remove(ahead[words[0]])
        else:
            answers = [getattr(limiter, verb)("k", rates, cost=words[0]) for limiter in limiters]
            if not all(isinstance(answer, Permit) for answer in answers):
                assert answers[0] == answers[1]
                continue
            assert answers[0].at_us == answers[1].at_us
            granted.append((answers[0], answers[1]))
    assert not broken(policy, sorted((permit.at_us, permit.cost) for permit, _ in granted))


def broken(policy: Policy, sends: list[tuple[int, int]]) -> list[str]:
    """Where sends (µs, cost) break a policy."""
    found = [
        f"{window} at {end}"
        for window in policy.windows
        for end, _ in sends
        if sum(cost for at, cost in sends if end - window.interval_us < at <= end) > window.limit
    ]
    found += [f"gap at {b}" for (a, _), (b, _) in pairwise(sends) if b - a < policy.gap_us]
    if policy.burst is not None:
        for n, (start, _) in enumerate(sends):
            for m, (end, _) in enumerate(sends[n:], n + 1):
                if sum(cost for _, cost in sends[n:m]) > policy.burst.limit + (end - start) // policy.burst.every_us:
                    found.append(f"burst from {start} to {end}")
    return found


def test_a_cancelled_moment_goes_to_the_next(redis: Redis) -> None:
    """A moment that was given back is reserved again, before those behind it; and nobody moves."""
    for limiter in (Limiter(redis, namespace="n", clock=str(START)), MemoryLimiter(lambda: START)):
        five = [limiter.reserve("k", "1/10s") for _ in range(5)]
        assert [permit.wait_us // S for permit in five if isinstance(permit, Permit)] == [0, 10, 20, 30, 40]
        assert isinstance(five[2], Permit)
        assert limiter.refund(five[2])
        again = [limiter.reserve("k", "1/10s") for _ in range(2)]
        assert [permit.wait_us // S for permit in again if isinstance(permit, Permit)] == [20, 50]
