"""The limiters: the Lua against the evaluator in Python, and both against counting."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Hold, Permit
from notifier.producer.permits import UserPermit
from notifier.rules.category import Category
from notifier.rules.policies import Rules
from notifier.rules.policy import Policy, Window
from tests.harness.asking import InMemory, InRedis, rules_of
from tests.harness.support import expire_alike
from tests.property.amount import examples
from tests.property.model import admits, violations

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


class Both:
    """One user under fixed rules, asked of Redis and of the evaluator at the same moment; the rest is counting."""

    def __init__(self, redis: Redis, of_user: Policy | Rules) -> None:
        redis.flushdb()
        self.now = START
        self.rules = of_user
        self.redis = InRedis(redis)
        self.memory = InMemory(lambda: self.now)
        rules = rules_of(of_user)
        self.policies = [rules.user, rules.category.policy]
        self.bypass = rules.category.bypass
        self.permits: list[tuple[UserPermit, UserPermit]] = []
        self.sent: list[Permit] = []

    def admits(self, at_us: int, cost: int) -> bool:
        """Whether `cost` more may go then, by counting."""
        sends = [(permit.at_us, permit.cost) for permit in self.sent]
        return self.bypass or all(admits(policy, sends, at_us, cost) for policy in self.policies)

    def left(self, cost: int = 1) -> int:
        """The time left."""
        answer = self.memory.peek("ann", self.rules, cost=cost)
        return answer.time_left_us if isinstance(answer, Hold) else 0

    def ask(self, cost: int = 1, *, take: bool) -> Permit | Hold:
        """Ask both and compare."""
        self.redis.clock = str(self.now)
        expire_alike(self.redis.redis, self.memory, self.now)
        verb = "acquire" if take else "peek"
        of_redis: Permit | Hold = getattr(self.redis, verb)("ann", self.rules, cost=cost)
        of_memory: Permit | Hold = getattr(self.memory, verb)("ann", self.rules, cost=cost)
        if isinstance(of_memory, Hold):
            assert of_redis == of_memory
            opens = self.now + of_memory.time_left_us
            assert self.admits(opens, cost)
            assert not self.admits(opens - 1, cost)
            return of_memory
        assert isinstance(of_redis, Permit)
        assert (of_redis.at_us, of_redis.cost) == (of_memory.at_us, of_memory.cost) == (self.now, cost)
        assert self.admits(self.now, cost)
        if take:
            self.permits.append((of_redis, of_memory))
            horizon = max(policy.horizon_us for policy in self.policies)  # what no rule can ask for is forgotten
            self.sent = [permit for permit in self.sent if permit.at_us > self.now - horizon] + [of_memory]
        return of_memory

    def refund(self, index: int) -> None:
        """Take a permit back from both."""
        of_redis, of_memory = self.permits[index % len(self.permits)]
        assert self.redis.refund(of_redis) == self.memory.refund(of_memory)
        self.sent = [permit for permit in self.sent if permit is not of_memory]


actions = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("ask"), st.just(1), st.just(value=True)),
    st.tuples(st.just("advance"), steps),
    st.tuples(st.just("refund"), st.integers(0, 20)),
)


@given(rules, st.lists(actions, min_size=10, max_size=40))
@settings(max_examples=examples(250))
def test_redis_and_the_evaluator_give_the_same_answers(
    redis: Redis, of_user: Policy | Rules, script: list[tuple[Any, ...]]
) -> None:
    """Laws 1 and 3: the same answers, with their time left and rule; and the time left is right by counting."""
    both = Both(redis, of_user)
    for verb, *args in script:
        if verb == "ask":
            both.ask(args[0], take=args[1])
        elif verb == "advance":
            both.now += args[0]
        elif both.permits:
            both.refund(args[0])
    both.ask(take=False)


@given(rules, st.lists(steps, min_size=5, max_size=40))
@settings(max_examples=examples(100))
def test_no_window_is_exceeded_and_no_gap_undercut(redis: Redis, of_user: Policy | Rules, waits: list[int]) -> None:
    """Law 1: the granted sends, looked at together, keep every rule; a time left is exact (law 3).

    One microsecond before it has passed the answer is still no, and when it has, it is yes.
    """
    both = Both(redis, of_user)
    for wait in waits:
        both.now += wait
        answer = both.ask(take=True)
        if isinstance(answer, Hold):
            both.now += answer.time_left_us - 1
            assert both.ask(take=True) == Hold(1, answer.rule)
            both.now += 1
            assert isinstance(both.ask(take=True), Permit)
    sent = [permit.at_us for permit, _ in both.permits]
    assert both.bypass or not any(violations(policy, sent) for policy in both.policies)


@given(rules, st.lists(steps, min_size=3, max_size=12), st.lists(st.integers(1, 3), min_size=1, max_size=12))
@settings(max_examples=examples(100))
def test_a_blocked_attempt_is_not_a_send(
    redis: Redis, of_user: Policy | Rules, waits: list[int], costs: list[int]
) -> None:
    """Law 5: asking again and again leaves in Redis exactly what was there before."""
    both = Both(redis, of_user)
    for wait in waits:
        both.now += wait
        while isinstance(both.ask(take=True), Permit) and len(both.permits) < 50:
            pass
        before = [redis.zrange(key, 0, -1, withscores=True) for key in sorted(redis.keys())]
        answers = [both.ask(cost, take=True) for cost in costs if both.left(cost)]
        peeks = [both.ask(cost, take=False) for cost in costs if both.left(cost)]
        assert answers == peeks
        assert before == [redis.zrange(key, 0, -1, withscores=True) for key in sorted(redis.keys())]


@given(policies, st.lists(st.tuples(steps, st.integers(0, 4 * M)), min_size=5, max_size=30))
@settings(max_examples=examples(100))
def test_a_clock_that_steps_back_never_bursts(redis: Redis, policy: Policy, moves: list[tuple[int, int]]) -> None:
    """Law 1 in true time: the server's clock may be set back by any amount, any number of times."""
    both = Both(redis, policy)
    elapsed = 0
    sent: list[int] = []
    for wait, back in moves:
        elapsed += wait
        both.now += wait
        if isinstance(both.ask(take=True), Permit):
            sent.append(elapsed)
        both.now -= back
    assert not violations(policy, sent)
