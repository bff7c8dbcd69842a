"""The limiters: the Lua against its twin in memory against a plain model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from notifier.limiter import Hold, Permit, RedisLimiter
from notifier.limiter.memory_sends import MemorySends
from notifier.limiter.protocol import describe
from notifier.rules.policies import Rules
from notifier.rules.policy import Category, Policy, Window
from tests.property.amount import examples
from tests.property.model import Send, Sends, violations

if TYPE_CHECKING:
    from redis import Redis

START = 1_700_000_000_000_000
S = 1_000_000
M = 60 * S
# Redis forgets by its own clock what the rules cannot ask for by the test's: so no rule is shorter than a minute.
spans = st.one_of(st.sampled_from([M, 2 * M, 5 * M]), st.integers(M, 5 * M))
windows = st.builds(Window, st.integers(3, 6), interval_us=spans)
policies = st.builds(Policy, st.lists(windows, max_size=3).map(tuple), st.one_of(st.just(0), st.integers(M, 2 * M)))
categories = st.builds(
    Category, st.sampled_from(["chat", "news"]), policy=policies, bypass=st.sampled_from([False, False, True])
)
rules = st.one_of(policies, st.builds(Rules, policies, categories))
steps = st.one_of(st.sampled_from([0, 1, S, M - 1, M, M + 1]), st.integers(0, 3 * M))


class Three:
    """One user under fixed rules, asked of Redis, of the twin and of the model at the same moment."""

    def __init__(self, redis: Redis, of_user: Policy | Rules) -> None:
        redis.flushdb()
        self.now = START
        self.rules = of_user
        self.redis = RedisLimiter(redis)
        self.memory = MemorySends(lambda: self.now)
        user = of_user if isinstance(of_user, Policy) else of_user.user
        self.category = None if isinstance(of_user, Policy) else of_user.category
        self.scopes = [Sends(user)] + ([Sends(self.category.policy)] if self.category else [])
        self.permits: list[tuple[Permit, Permit]] = []

    def expected(self, cost: int) -> tuple[int, str]:
        """Time left and rule, as the model has them."""
        if self.category is not None and self.category.bypass:
            return 0, ""
        names = ["user", self.category.name if self.category else ""]
        at, rule = self.scopes[0].earliest(cost)
        scope = 0
        for i, sends in enumerate(self.scopes[1:], 1):
            if sends.earliest(cost)[0] > at:
                (at, rule), scope = sends.earliest(cost), i
        left = max(0, at - self.now)
        return left, describe(names[scope], self.scopes[scope].policy, rule) if left else ""

    def ask(self, cost: int = 1, *, take: bool) -> Permit | Hold:
        """Ask all three and compare; returns the twin's answer."""
        self.redis.clock = str(self.now)
        verb = "acquire" if take else "peek"
        of_redis: Permit | Hold = getattr(self.redis, verb)("ann", self.rules, cost=cost)
        of_memory: Permit | Hold = getattr(self.memory, verb)("ann", self.rules, cost=cost)
        left, rule = self.expected(cost)
        if left:
            assert of_redis == of_memory == Hold(left, rule)
            return of_memory
        assert isinstance(of_redis, Permit)
        assert isinstance(of_memory, Permit)
        assert (of_redis.at_us, of_redis.cost) == (of_memory.at_us, of_memory.cost) == (self.now, cost)
        if take:
            self.permits.append((of_redis, of_memory))
            for sends in self.scopes:
                sends.add(Send(of_memory.id, self.now, cost), self.now)
        return of_memory

    def refund(self, index: int) -> bool:
        """Take a permit back from all three."""
        of_redis, of_memory = self.permits[index % len(self.permits)]
        found = [sends.take_back(of_memory.id) for sends in self.scopes]
        assert self.redis.refund(of_redis) == self.memory.refund(of_memory) == any(found)
        return any(found)

    def reset(self) -> None:
        """Forget all sends in all three."""
        names = [self.category.name] if self.category else []
        forgotten = sum(send.cost for send in self.scopes[0].all)
        assert self.redis.reset("ann", *names) == self.memory.reset("ann", *names) == forgotten
        for sends in self.scopes:
            sends.all.clear()


actions = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("ask"), st.just(1), st.just(value=True)),
    st.tuples(st.just("advance"), steps),
    st.tuples(st.just("refund"), st.integers(0, 20)),
    st.tuples(st.just("reset")),
)


@given(rules, st.lists(actions, min_size=10, max_size=40))
@settings(max_examples=examples(250))
def test_redis_twin_and_model_give_the_same_answers(
    redis: Redis, of_user: Policy | Rules, script: list[tuple[Any, ...]]
) -> None:
    """Laws 1 and 3: every answer, with its time left and its rule, is the plain model's."""
    three = Three(redis, of_user)
    for verb, *args in script:
        if verb == "ask":
            three.ask(args[0], take=args[1])
        elif verb == "advance":
            three.now += args[0]
        elif verb == "refund":
            if three.permits:
                three.refund(args[0])
        else:
            three.reset()
    left, _ = three.expected(1)
    assert isinstance(three.ask(take=False), Hold) == bool(left)


@given(rules, st.lists(steps, min_size=5, max_size=40))
@settings(max_examples=examples(100))
def test_no_window_is_exceeded_and_no_gap_undercut(redis: Redis, of_user: Policy | Rules, waits: list[int]) -> None:
    """Law 1: the granted sends, looked at together, keep every rule; a time left is exact (law 3).

    One microsecond before it has passed the answer is still no, and when it has, it is yes.
    """
    three = Three(redis, of_user)
    for wait in waits:
        three.now += wait
        answer = three.ask(take=True)
        if isinstance(answer, Hold):
            three.now += answer.time_left_us - 1
            assert three.ask(take=True) == Hold(1, answer.rule)
            three.now += 1
            assert isinstance(three.ask(take=True), Permit)
    sent = [permit.at_us for permit, _ in three.permits]
    held = three.category is None or not three.category.bypass
    assert not any(violations(sends.policy, sent) for sends in three.scopes if held)


@given(rules, st.lists(steps, min_size=3, max_size=12), st.lists(st.integers(1, 3), min_size=1, max_size=12))
@settings(max_examples=examples(100))
def test_a_blocked_attempt_is_not_a_send(
    redis: Redis, of_user: Policy | Rules, waits: list[int], costs: list[int]
) -> None:
    """Law 5: asking again and again leaves in Redis and in the twin exactly what was there before."""
    three = Three(redis, of_user)
    for wait in waits:
        three.now += wait
        while isinstance(three.ask(take=True), Permit) and len(three.permits) < 50:
            pass
        before = [redis.zrange(key, 0, -1, withscores=True) for key in sorted(redis.keys())]
        answers = [three.ask(cost, take=True) for cost in costs if three.expected(cost)[0]]
        peeks = [three.ask(cost, take=False) for cost in costs if three.expected(cost)[0]]
        assert answers == peeks
        assert before == [redis.zrange(key, 0, -1, withscores=True) for key in sorted(redis.keys())]


@given(policies, st.lists(st.tuples(steps, st.integers(0, 4 * M)), min_size=5, max_size=30))
@settings(max_examples=examples(100))
def test_a_clock_that_steps_back_never_bursts(redis: Redis, policy: Policy, moves: list[tuple[int, int]]) -> None:
    """Law 1 in true time: the server's clock may be set back by any amount, any number of times."""
    three = Three(redis, policy)
    elapsed = 0
    sent: list[int] = []
    for wait, back in moves:
        elapsed += wait
        three.now += wait
        if isinstance(three.ask(take=True), Permit):
            sent.append(elapsed)
        three.now -= back
    assert not violations(policy, sent)
