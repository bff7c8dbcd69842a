"""The limiter of a namespace: one suite over the synchronous one, the one of asyncio and the one in memory."""

import asyncio
import inspect
import multiprocessing
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.errors import LimiterUnreachableError
from notifier.limiter import (
    AsyncLimiter,
    AsyncMemoryLimiter,
    Burst,
    Hold,
    Limiter,
    LimitExceeded,
    MemoryLimiter,
    Permit,
    Policy,
    Window,
    base,
)
from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.base import KeyLimiter
from notifier.scripts.connection_wait import in_turn
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.asking import InRedis
from tests.harness.processes import cpu_s
from tests.harness.support import PATIENCE_S, let_pass

START = 1_700_000_040_000_000
S = 1_000_000
M = 60 * S


class Awaited:
    """A limiter of asyncio as a synchronous one: each method runs to its end in a loop of this test's."""

    def __init__(self, limiter: AsyncKeyLimiter, runner: asyncio.Runner) -> None:
        self.limiter = limiter
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.limiter, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            return self._runner.run(found) if inspect.iscoroutine(found) else found

        return call


class Subject:
    """A limiter of each kind whose clock the test moves."""

    def __init__(self, kind: str, server: Redis, runner: asyncio.Runner) -> None:
        self._kind, self._server, self._runner = kind, server, runner
        self.now = START
        self.made: list[Any] = []
        self.limiter = self.make("login", usage_keep="7d")

    def make(self, namespace: str, **options: Any) -> Any:
        if self._kind == "memory":
            return MemoryLimiter(lambda: self.now, **options)
        if self._kind == "async memory":
            return Awaited(AsyncMemoryLimiter(lambda: self.now, **options), self._runner)
        if self._kind == "sync":
            made = Limiter(self._server, namespace=namespace, clock=str(self.now), **options)
            self.made.append(made)
            return made
        kwargs = self._server.connection_pool.connection_kwargs
        client = AsyncRedis(host=kwargs["host"], port=kwargs["port"], db=kwargs.get("db", 0), protocol=2)
        made = AsyncLimiter(client, namespace=namespace, clock=str(self.now), **options)
        self.made.append(made)
        return Awaited(made, self._runner)

    def advance(self, us: int) -> None:
        self.now += us
        for made in self.made:
            made._requests.clock = str(self.now)

    def close(self) -> None:
        for made in self.made:
            if isinstance(made, AsyncLimiter):
                self._runner.run(made.aclose())


@pytest.fixture(params=["sync", "async", "memory", "async memory"])
def subject(request: pytest.FixtureRequest, redis: Redis) -> Iterator[Subject]:
    with asyncio.Runner() as runner:
        made = Subject(request.param, redis, runner)
        yield made
        made.close()


# For what takes many calls: with asyncio the same scripts are asked, and the same keys in memory.
WITHOUT_ASYNCIO = pytest.mark.parametrize("subject", ["sync", "memory"], indirect=True)


@pytest.mark.parametrize("cost", [True, 1.0, 2.0])
def test_what_is_no_cost_is_refused_whatever_was_asked_before(subject: Subject, cost: Any) -> None:
    """True and 1.0 are equal to the 1 of an earlier call, and no cost all the same."""
    for _ in range(2):
        with pytest.raises(ValueError, match="cost must be a whole number"):
            subject.limiter.acquire("k", "77/minute", cost=cost)
        for known in (1, 2):
            subject.limiter.acquire("k", "77/minute", cost=known)


def test_a_permit_of_another_kind_of_limiter_is_not_taken_back(subject: Subject) -> None:
    """In memory a permit of Redis is unknown, as one that has lapsed."""
    permit = subject.limiter.acquire("k", "5/minute")
    assert subject.limiter.refund(replace(permit, id=f"{permit.at_us - 1}-23f7")) is False
    assert subject.limiter.refund(permit) is True


def test_it_answers_with_what_is_left(subject: Subject) -> None:
    """A permit says how many more there are and when; a hold says how long is left and which rule decides it."""
    for left in (2, 1, 0):
        match subject.limiter.acquire("ip:203.0.113.7", "3/minute; 100/day"):
            case Permit(remaining=remaining, reset_after=after, rule=rule):
                assert (remaining, rule) == (left, "3/1m")
                assert after == timedelta(minutes=1)
            case other:
                raise AssertionError(other)
    subject.advance(20 * S)
    match subject.limiter.acquire("ip:203.0.113.7", "3/minute; 100/day"):
        case Hold(time_left=time_left, rule=rule):
            assert time_left == timedelta(seconds=40)
            assert rule == "3/1m"
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize(
    ("rates", "rule", "reset_us"),
    [
        ("5/minute; 10/hour", "10/1h", 59 * M),
        ("10/hour; 5/minute", "10/1h", 59 * M),
        ("5/minute; 10/calendar-day", "10/calendar-day", 6_300 * S),
    ],
)
def test_of_windows_with_equal_room_the_longer_is_told(subject: Subject, rates: str, rule: str, reset_us: int) -> None:
    """Who comes again when it says so is not told to wait for another window then."""
    subject.limiter.acquire("k", rates, cost=5)
    subject.advance(M)
    permits = [subject.limiter.acquire("k", rates) for _ in range(5)]
    assert (permits[-1].remaining, permits[-1].rule, permits[-1].reset_after_us) == (0, rule, reset_us)


def test_at_once_the_longer_of_equal_windows_is_told(subject: Subject) -> None:
    """So it is for the first permits of a key, for which Redis takes a shorter way, and where both are overdrawn."""
    permits = [subject.limiter.acquire("k", "2/minute; 2/hour") for _ in range(2)]
    assert [(permit.remaining, permit.rule) for permit in permits] == [(1, "2/1h"), (0, "2/1h")]
    for rates in ("6/minute; 5/hour", "5/minute; 6/hour"):
        told = [subject.limiter.penalize(rates, rates, cost=5) for _ in range(2)][-1]
        assert (told.remaining, told.rule, told.reset_after_us) == (0, f"{rates[10]}/1h", 60 * M)


def test_a_window_is_full_until_its_first_leaves(subject: Subject) -> None:
    """Ten go in ten seconds, one a second; the eleventh goes when the first is exactly as old as the window is long."""
    for _ in range(10):
        assert subject.limiter.acquire("k", "10/10s")
        subject.advance(S)
    assert subject.limiter.acquire("k", "10/10s"), "the first was exactly ten seconds ago"
    assert not subject.limiter.acquire("k", "10/10s")
    subject.advance(S - 1)
    assert not subject.limiter.acquire("k", "10/10s")
    subject.advance(1)
    assert subject.limiter.acquire("k", "10/10s")


def test_each_leaves_at_its_own_time(subject: Subject) -> None:
    """Room comes back as it was taken, not all at once; what remains, and when there is more, is told of the first."""
    assert subject.limiter.acquire("k", "3/10s")
    subject.advance(4 * S)
    permit = subject.limiter.acquire("k", "3/10s", cost=2)
    assert (permit.remaining, permit.reset_after) == (0, timedelta(seconds=6))
    subject.advance(6 * S)
    look = subject.limiter.peek("k", "3/10s")
    assert (look.remaining, look.reset_after) == (1, timedelta(seconds=4))
    subject.advance(4 * S)
    look = subject.limiter.peek("k", "3/10s")
    assert (look.remaining, look.reset_after) == (3, timedelta(0))


def test_a_cost_goes_whole_or_not_at_all(subject: Subject) -> None:
    """A call that costs more than is left takes nothing of what is left."""
    assert subject.limiter.acquire("k", "10/minute", cost=8)
    assert not subject.limiter.acquire("k", "10/minute", cost=3)
    assert subject.limiter.acquire("k", "10/minute", cost=2)
    assert not subject.limiter.peek("k", "10/minute")


def test_several_windows_of_one_call(subject: Subject) -> None:
    """All of them count what one call takes; the one that refuses says so, and the others keep what they have."""
    rates = "2/second; 3/minute"
    assert [bool(subject.limiter.acquire("k", rates)) for _ in range(3)] == [True, True, False]
    subject.advance(S)
    assert subject.limiter.acquire("k", rates)
    assert subject.limiter.acquire("k", rates) == Hold(59 * S, "3/1m")


def test_a_gap_is_kept(subject: Subject) -> None:
    """Two are never closer together than the gap."""
    assert isinstance(subject.limiter.acquire("k", "100/day; gap 200ms"), Permit)
    hold = subject.limiter.acquire("k", "100/day; gap 200ms")
    assert (hold.time_left_us, hold.rule) == (200_000, "gap 200ms")
    subject.advance(200_000)
    assert isinstance(subject.limiter.acquire("k", "100/day; gap 200ms"), Permit)


def test_a_namespace_is_its_own(subject: Subject, redis: Redis) -> None:
    """What one namespace uses up is neither another's nor a user's push budget."""
    assert isinstance(subject.limiter.acquire("42", "1/day"), Permit)
    assert isinstance(subject.limiter.acquire("42", "1/day"), Hold)
    assert isinstance(subject.make("signup").acquire("42", "1/day"), Permit)
    assert isinstance(InRedis(redis).acquire("42", Policy((Window(1, "1d"),))), Permit)


def test_check_raises(subject: Subject) -> None:
    """`check` gives the permit, or raises with the time left, the rule and the policy."""
    assert subject.limiter.check("k", "1/minute").remaining == 0
    with pytest.raises(LimitExceeded, match=r"k: 1/1m is used up; try again in 60\.000 s") as raised:
        subject.limiter.check("k", "1/minute")
    assert raised.value.time_left == timedelta(minutes=1)
    assert raised.value.rule == "1/1m"
    assert raised.value.policy == Policy((Window(1, "1m"),))
    assert raised.value.retry_after_s == 60


def test_each_send_is_kept_as_long_as_its_own_rules_need_it(subject: Subject) -> None:
    """Callers that ask for a key by shorter rules do not make its longer rules forget."""
    for _ in range(5):
        subject.limiter.acquire("k", "5/hour")
    for _ in range(3):  # the last of them when the hour has less left than the minute is long
        subject.advance(59 * M // 3 + 10 * S)
        assert isinstance(subject.limiter.acquire("k", "1000/minute"), Permit)
    assert isinstance(subject.limiter.acquire("k", "5/hour"), Hold)
    assert subject.limiter.count("k", last="1h") == 8


def test_sends_of_a_shorter_rate_outlive_the_longer(subject: Subject, redis: Redis) -> None:
    """Where a key's longer rate is asked no more, the sends of the shorter count as long as that one needs them."""
    limiter = subject.make("two")

    def elapse(ms: int) -> None:
        subject.advance(ms * 1000)
        for key in redis.keys("notifier:keys:two:{k}"):
            redis.pexpire(key, redis.pttl(key) - ms)

    limiter.acquire("k", "1/10s")
    elapse(11_000)
    assert limiter.acquire("k", "1/9s")
    elapse(8_000)
    limiter.acquire_many([(f"another {n}", "1/second") for n in range(1_100)])  # in memory keys go as others come
    assert not limiter.acquire("k", "1/9s")


@pytest.mark.parametrize("together", [False, True])
def test_a_rule_that_is_refused_is_not_forgotten(subject: Subject, *, together: bool) -> None:
    """A key's longer rule counts all that the shorter lets go, for as long as it is asked for."""
    sent: list[int] = []
    for n in range(60):
        asked = [("k", "3/hour")]
        answer = subject.limiter.acquire_all(asked) if together else subject.limiter.acquire(*asked[0])
        assert bool(answer) == (sum(at > subject.now - 60 * M for at in sent) < 3), n
        if answer:
            sent.append(subject.now)
        if n and subject.limiter.acquire("k", "100/minute"):
            sent.append(subject.now)
        subject.advance(5 * M)


def test_precision_is_refused(subject: Subject) -> None:
    """Every window is exact: a precision would do nothing, so it is refused, alone and in a policy."""
    coarse = Window(40, "1h", precision_us=M)
    for rates in (coarse, ["5/minute", coarse], Policy(windows=(coarse,))):
        with pytest.raises(ValueError, match="every window of the limiter is exact"):
            subject.limiter.acquire("k", rates)


def test_many_at_once(subject: Subject) -> None:
    """`acquire_many` answers each in order, in one call, as if they had been asked one after the other."""
    answers = subject.limiter.acquire_many([("a", "1/minute"), ("a", "1/minute"), ("b", "5/minute", 3)])
    assert [type(answer) for answer in answers] == [Permit, Hold, Permit]
    assert answers[2].remaining == 2
    assert subject.limiter.acquire_many([]) == []


@WITHOUT_ASYNCIO
def test_very_many_at_once(subject: Subject) -> None:
    """However many keys are asked for together, each is answered, in order, also where dates have to be told anew."""
    asked = [(f"k{n % 600}", "1/month; 5/minute") for n in range(1200)]
    answers = subject.limiter.acquire_many(asked)
    assert [answer.key for answer in answers] == [key for key, _ in asked]
    assert [type(answer) for answer in answers] == [Permit] * 600 + [Hold] * 600
    subject.advance(40 * 24 * 60 * M)
    assert [type(answer) for answer in subject.limiter.acquire_many(asked)] == [Permit] * 600 + [Hold] * 600


@WITHOUT_ASYNCIO
def test_each_of_thousands_of_keys_keeps_its_own_budget(subject: Subject) -> None:
    """However many keys are known, a new one takes nothing from another's, and has one of its own."""
    asked = [(f"k{n}", "1/day") for n in range(2_000)]
    assert all(subject.limiter.acquire_many(asked))
    assert not any(subject.limiter.acquire_many(asked))


def test_keys_of_odd_names_do_not_know_each_other(subject: Subject) -> None:
    """What one key takes, no other misses, whatever it is in Redis's eyes; to forget one forgets no other."""
    asked = [(key, "1/day") for key in ("a", "b", "a:b", "{a}", "é")]
    assert all(subject.limiter.acquire_many(asked))
    assert subject.limiter.reset("a") == 1
    assert [bool(answer) for answer in subject.limiter.acquire_many(asked)] == [True, *[False] * 4]


@WITHOUT_ASYNCIO
def test_hundreds_in_a_window_are_exact(subject: Subject) -> None:
    """Under constant pressure a key goes as often as its window admits, and no more, for many windows on end."""
    admitted: list[int] = []
    for n in range(2_000):
        expected = len(admitted) < 200 or n * 6 * S - admitted[-200] >= 60 * M
        assert bool(subject.limiter.acquire("k", "200/hour")) == expected, n
        if expected:
            admitted.append(n * 6 * S)
        subject.advance(6 * S)
    assert len(admitted) == 800


@WITHOUT_ASYNCIO
def test_each_of_hundreds_at_one_moment_is_given_back(subject: Subject) -> None:
    """A permit is found among as many of its own µs as one call can take."""
    permits = subject.limiter.acquire_many([("k", "1000/minute")] * 400)
    for _ in range(20):  # these move those to where the older ones are
        subject.advance(1)
        subject.limiter.check("k", "1000/minute")
    assert all(subject.limiter.refund(permit) for permit in reversed(permits))
    assert subject.limiter.count("k", last="1m") == 20


def far_back(subject: Subject, key: str, blocks: int) -> tuple[list[Permit], str]:
    """So many times 500 permits of a day, and the clock set back to the first; these, and a rule with room for one."""
    rate = f"{blocks * 500 + 1}/day"
    taken: list[Permit] = []
    for _ in range(blocks):
        taken += subject.limiter.acquire_many([(key, rate)] * 500)
        subject.advance(50 * S)
    subject.advance(-50 * blocks * S + 1)
    return taken, rate


@WITHOUT_ASYNCIO
def test_a_clock_that_goes_far_back(subject: Subject) -> None:
    """What was taken since counts on, and each permit of it is found."""
    taken, rate = far_back(subject, "k", 12)
    taken.append(subject.limiter.acquire("k", rate))
    assert all(isinstance(permit, Permit) for permit in taken)
    assert not subject.limiter.acquire("k", rate)
    assert all(subject.limiter.refund(permit) for permit in taken[::100])
    assert subject.limiter.acquire("k", rate, cost=61)
    assert not subject.limiter.acquire("k", rate)


def test_a_clock_that_goes_far_back_takes_no_quadratic_time(redis: Redis) -> None:
    """As many sends since then take Redis about as long in one key as in eight, not eight times as long."""
    with asyncio.Runner() as runner:
        subject = Subject("sync", redis, runner)

        def took(name: str, keys: int) -> float:
            asked = [(key, far_back(subject, key, 32 // keys)[1]) for key in (f"{name} {n}" for n in range(keys))]
            begun = cpu_s(redis)
            assert all(subject.limiter.acquire(key, rate) for key, rate in asked)
            return cpu_s(redis) - begun

        eight, one = (min(took(f"{keys}, {n}", keys) for n in range(2)) for keys in (8, 1))
    assert one < 4 * eight


def test_waiting_is_exact_and_in_order(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permit that is waited for is dated ahead, so who comes later goes later, and nobody is woken in vain."""
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(base, "_sleep", sleep)
    monkeypatch.setattr(KeyLimiter, "_sleep", lambda _self, seconds: slept.append(seconds))
    assert [subject.limiter.wait("k", "1/10s", timeout="1m").wait_us for _ in range(3)] == [0, 10 * S, 20 * S]
    assert slept == [0, 10, 20]
    hold = subject.limiter.acquire("k", "1/10s")
    assert hold.time_left_us == 30 * S, "who does not wait goes behind those who do"


def test_wait_sleeps_and_gives_up_at_once_where_it_is_too_long(subject: Subject) -> None:
    """`wait` returns its permit; beyond `timeout` it raises at once, and takes nothing."""
    assert subject.limiter.wait("k", "1/50ms").wait_us == 0
    assert subject.limiter.wait("k", "1/50ms").wait_us == 50_000
    with pytest.raises(LimitExceeded):
        subject.limiter.wait("k", "1/50ms", timeout="90ms")
    assert subject.limiter.peek("k", "1/50ms").time_left_us == 100_000


def test_a_refund_and_a_reset(subject: Subject) -> None:
    """A refund takes one back, once; a reset forgets all."""
    permit = subject.limiter.acquire("k", "1/day", cost=1)
    assert subject.limiter.refund(permit)
    assert not subject.limiter.refund(permit)
    assert isinstance(subject.limiter.acquire("k", "1/day"), Permit)
    assert subject.limiter.reset("k") == 1
    assert isinstance(subject.limiter.acquire("k", "1/day"), Permit)


def test_what_has_lapsed_is_neither_given_back_nor_counted(subject: Subject) -> None:
    """What is older than the key's rules ask for is no more there, whether its place was needed since or not."""
    permit = subject.limiter.acquire("k", "100/10s")
    subject.advance(10 * S - 1)
    assert subject.limiter.count("k", last="1h") == 1
    subject.advance(1)
    assert subject.limiter.count("k", last="1h") == 0
    assert not subject.limiter.refund(permit)


def test_a_permit_that_nobody_gave_takes_nothing_back(subject: Subject) -> None:
    """Where Redis could not be asked and everything goes, the permit has no id: to refund it changes nothing."""
    subject.limiter.acquire("k", "1/day")
    assert not subject.limiter.refund(Permit("", "k", 1, subject.now))
    assert isinstance(subject.limiter.acquire("k", "1/day"), Hold)


def test_peek_takes_nothing(subject: Subject) -> None:
    """`peek` answers as `acquire` would."""
    for _ in range(3):
        assert subject.limiter.peek("k", "2/minute").remaining == 2
    subject.limiter.acquire("k", "2/minute", cost=2)
    assert isinstance(subject.limiter.peek("k", "2/minute"), Hold)


def test_what_is_added_is_counted_and_never_refused(subject: Subject) -> None:
    """`add` counts what has happened already: rules that come later see it."""
    for _ in range(3):
        subject.limiter.add("k", 3)
    assert subject.limiter.count("k", last="15m") == 9
    assert isinstance(subject.limiter.acquire("k", "9/minute"), Hold)
    subject.advance(M)
    assert subject.limiter.count("k", last="1m") == 0
    assert subject.limiter.count("k", last="15m") == 9


def test_usage(subject: Subject) -> None:
    """Totals, first and last use, and how often it was held."""
    assert subject.limiter.usage("k").total == 0
    subject.limiter.acquire("k", "2/minute")
    subject.advance(M // 2)
    for _ in range(3):
        subject.limiter.acquire("k", "2/minute")
    usage = subject.limiter.usage("k")
    assert (usage.total, usage.held) == (2, 2)
    assert (usage.first_used_us, usage.last_used_us) == (START, START + M // 2)
    assert usage.per_second["1h"] == 2 / 3600


def test_rankings(subject: Subject) -> None:
    """`top` ranks the namespace's keys by total, last use, rate and holds, either way round."""
    for key, times in (("a", 3), ("b", 5), ("c", 1)):
        for _ in range(times):
            subject.limiter.acquire(key, "4/hour")
        subject.advance(M)
    names = lambda **kwargs: [entry.key for entry in subject.limiter.top(10, **kwargs)]  # noqa: E731
    assert names() == ["b", "a", "c"]
    assert names(by="total", ascending=True) == ["c", "a", "b"]
    assert names(by="last_used") == ["c", "b", "a"]
    assert names(by="rate") == ["b", "a", "c"]
    assert names(by="held") == ["b"]
    first = subject.limiter.top(1)[0]
    assert (first.total, first.held, first.rate) == (4, 1, 4 / 3600)
    assert first.last_used is not None


def test_a_rate_is_of_sixty_minutes(subject: Subject) -> None:
    """A key that was busy a little more than an hour ago is in no rank by rate, nor does it hide one that is now."""
    subject.advance(-START % (10 * M))
    for later, times in ((0, {"before": 9, "both": 7, "long ago": 8}), (65 * M, {"now": 3, "both": 1, "new": 2})):
        subject.advance(later)
        for key, count in times.items():
            subject.limiter.acquire(key, "1000/day", cost=count)
    names = lambda count, **way: [entry.key for entry in subject.limiter.top(count, by="rate", **way)]  # noqa: E731
    assert [names(count) for count in (1, 2, 10)] == [["now"], ["now", "new"], ["now", "new", "both"]]
    assert [names(count, ascending=True) for count in (1, 10)] == [["both"], ["both", "new", "now"]]
    assert [entry.rate for entry in subject.limiter.top(2, by="rate")] == [3 / 3600, 2 / 3600]


def test_a_series(subject: Subject) -> None:
    """A series counts by steps, of one key and of all."""
    for key in ("a", "a", "b"):
        subject.limiter.acquire(key, "100/hour")
        subject.advance(M)
    counts = lambda key, step="1m": [point.count for point in subject.limiter.series(key, last="4m", step=step)]  # noqa: E731
    assert counts("a") == [1, 1, 0, 0]
    assert counts(None) == [1, 1, 1, 0]
    assert counts(None, "2m") == [2, 1]


def test_usage_where_the_clock_is_set_back(subject: Subject) -> None:
    """Each use is counted in the minute that the clock showed."""
    for us in (0, 0, M, -M):
        subject.advance(us)
        subject.limiter.acquire("k", "100/hour")
    assert subject.limiter.usage("k").per_second["1m"] == 3 / 60
    assert subject.limiter.top(1)[0].rate == 3 / 3600
    subject.advance(M)
    assert [point.count for point in subject.limiter.series("k", last="2m", step="1m")] == [3, 1]


@WITHOUT_ASYNCIO
def test_usage_of_many_keys_over_hours(subject: Subject) -> None:
    """A use is counted once, whenever it is read, by its key or with all; also of keys that nobody asks for again."""
    expected: Counter[str] = Counter()
    for hour in range(3):
        for n in range(0, 300, hour + 1):
            for _ in range(n % 3 + 1):
                subject.limiter.acquire(f"k{n}", "1000/day")
                expected[f"k{n}"] += 1
        if hour == 1:
            assert subject.limiter.usage("k2").total == expected["k2"]
        subject.advance(7 * M)
        subject.limiter.acquire("k0", "1000/day", cost=5)
        expected["k0"] += 5
        subject.advance(53 * M)
    assert {each.key: each.total for each in subject.limiter.top(1000)} == expected
    assert sum(point.count for point in subject.limiter.series(last="4h", step="1h")) == expected.total()
    assert sum(point.count for point in subject.limiter.series("k0", last="4h", step="1h")) == expected["k0"]
    assert subject.limiter.reset("k0")
    assert subject.limiter.usage("k0").total == 0


def test_a_reset_forgets_the_key_and_not_the_uses_of_all(subject: Subject) -> None:
    """A key that was reset is in no ranking; the series of the namespace has what was used of it."""
    for _ in range(3):
        subject.limiter.acquire("k", "5/hour")
    subject.limiter.reset("k")
    assert not [by for by in ("total", "held", "last_used", "rate") if subject.limiter.top(1, by=by)]
    assert sum(point.count for point in subject.limiter.series()) == 3


def test_a_use_outlives_the_rules(subject: Subject, redis: Redis) -> None:
    """What was used of a key is kept as `usage_keep` says, also where its rules need its sends for a second."""
    limiter = subject.make("short", usage_keep="1h")
    for _ in range(3):
        limiter.acquire("k", "5/second")
    for key in redis.keys("notifier:keys:short:*"):  # in memory there is none
        assert redis.pttl(key) > 3_600_000
    limiter.block("k", "5s")
    for key in redis.keys("notifier:keys:short:*"):
        assert redis.pttl(key) > 3_600_000
    assert limiter.usage("k").total == 3
    for key in redis.keys("notifier:keys:short:*"):
        assert redis.pttl(key) < 10_000


def test_what_outlives_the_use_is_kept(subject: Subject, redis: Redis) -> None:
    """Rules and blocks that are longer than `usage_keep` count to their end, however often the key is asked for."""
    limiter = subject.make("long", usage_keep="1h")
    limiter.block("blocked", "7d")
    for _ in range(3):
        limiter.acquire("k", "2/30d")
        limiter.acquire("blocked", "2/minute")
    subject.advance(100 * M)
    let_pass(redis, 100 * M)
    assert limiter.peek("k", "2/30d").time_left == timedelta(days=30) - timedelta(minutes=100)
    assert limiter.peek("blocked", "2/minute").rule == "blocked"


def test_usage_where_nothing_is_kept(subject: Subject) -> None:
    """Uses of a key by no rules are counted beside those that its rules keep, also within the same minutes."""
    for n in range(8):
        assert subject.limiter.acquire("k", "5/minute" if n % 4 < 2 else Policy())
    usage = subject.limiter.usage("k")
    assert (usage.total, usage.held, usage.per_second["1m"]) == (8, 0, 8 / 60)


def test_usage_is_bounded(subject: Subject, redis: Redis) -> None:
    """Keys that are idle for longer than `usage_keep` leave the ranks; without it no usage is kept at all."""
    limiter = subject.make("short", usage_keep="1h")
    for n in range(20):
        limiter.acquire(f"k{n}", "5/minute")
    subject.advance(2 * 60 * M)
    for n in range(10):
        limiter.acquire(f"new{n}", "5/minute")
    assert {entry.key for entry in limiter.top(100)} == {f"new{n}" for n in range(10)}
    assert not [key for key in redis.keys("*") if redis.pttl(key) == -1 and key != b"notifier:namespaces"]
    plain = subject.make("plain")
    plain.acquire("k", "5/minute")
    assert redis.keys("notifier:*plain*") == ([b"notifier:keys:plain:{k}"] if subject.made else [])
    with pytest.raises(ValueError, match="counts no usage"):
        plain.usage("k")


def test_the_decorator(subject: Subject) -> None:
    """`limit` raises, waits, or returns the hold in place of the result."""
    limiter = subject.limiter.limiter if isinstance(subject.limiter, Awaited) else subject.limiter

    def decorated(name: str, **options: Any) -> Any:
        if isinstance(limiter, AsyncKeyLimiter):

            @limiter.limit("1/50ms", key=lambda who: f"{name}:{who}", **options)
            async def greet(who: str) -> str:
                return f"hello {who}"

            return lambda who: subject._runner.run(greet(who))

        @limiter.limit("1/50ms", key=lambda who: f"{name}:{who}", **options)
        def greet_now(who: str) -> str:
            return f"hello {who}"

        return greet_now

    raising, returning, waiting = (
        decorated("raise"),
        decorated("return", on_hold="return"),
        decorated("w", on_hold="wait"),
    )
    assert raising("ann") == "hello ann"
    with pytest.raises(LimitExceeded):
        raising("ann")
    assert raising("bob") == "hello bob"
    assert returning("ann") == "hello ann"
    assert isinstance(returning("ann"), Hold)
    assert [waiting("ann") for _ in range(2)] == ["hello ann"] * 2


def test_a_plain_limiter_limits_async_functions_too(redis: Redis) -> None:
    """The synchronous decorator asks in a thread, so that the event loop goes on."""
    limiter, threads = Limiter(redis, namespace="login"), []

    def key() -> str:
        threads.append(threading.current_thread())
        return "k"

    @limiter.limit("1/minute", key=key, on_hold="return")
    async def work() -> str:
        return "done"

    assert asyncio.run(work()) == "done"
    assert isinstance(asyncio.run(work()), Hold)
    assert all(thread is not threading.main_thread() for thread in threads)


def test_what_cannot_be_limited_is_refused_when_it_is_decorated(subject: Subject) -> None:
    """An async generator, of either kind of limiter; a plain function, of one for asyncio. Nothing is spent or run."""
    limiter = subject.limiter.limiter if isinstance(subject.limiter, Awaited) else subject.limiter

    async def pages() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"async generator|async functions alone"):
        limiter.limit("1/minute", key="k")(pages)
    if isinstance(limiter, AsyncKeyLimiter):
        with pytest.raises(TypeError, match="a Limiter limits plain ones too"):
            limiter.limit("1/minute", key="k")(lambda: None)
    assert isinstance(subject.limiter.acquire("k", "1/minute"), Permit)


def test_rates_and_cost_of_a_call(subject: Subject) -> None:
    """The rates and the cost may be made of the arguments, as the key may; what stands there is checked at once."""
    limiter = subject.limiter.limiter if isinstance(subject.limiter, Awaited) else subject.limiter
    options = {"key": lambda who, _: who, "cost": lambda _, size: size, "on_hold": "return"}

    def rates(who: str, _: int) -> str:
        return "10/minute" if who == "ann" else "5/minute"

    if isinstance(limiter, AsyncKeyLimiter):

        @limiter.limit(rates, **options)
        async def upload(who: str, size: int) -> str:
            return f"{who} {size}"

        answers = [subject._runner.run(upload(who, 4)) for who in ("ann", "ann", "bob", "bob")]
    else:

        @limiter.limit(rates, **options)
        def upload_now(who: str, size: int) -> str:
            return f"{who} {size}"

        answers = [upload_now(who, 4) for who in ("ann", "ann", "bob", "bob")]
    assert [answer or type(answer) for answer in answers] == ["ann 4", "ann 4", "bob 4", Hold]
    with pytest.raises(ValueError, match="fortnight"):
        limiter.limit("5/fortnight", key="k", cost=lambda: 1)


@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("url", ["redis://:hunter2/x@h/0", "redis+cluster://one:1,:hunter2?x@two:2"])
def test_no_part_of_a_password_is_in_an_error(limiter: type[Limiter | AsyncLimiter], url: str) -> None:
    """A sign that ends the host of a URL makes a port of the password; the error says how the sign is written."""
    with pytest.raises(ValueError, match="in a password write %2F for /") as caught:
        limiter.from_url(url, namespace="n")
    assert "hunter" not in str(caught.value)


async def test_it_is_closed(redis_server: EmbeddedRedis) -> None:
    """`with` closes the connections, and so does `close`; in memory there are none."""
    with MemoryLimiter() as memory:
        assert memory.acquire("k", "1/minute")
    with Limiter.from_url(redis_server.url, namespace="n") as limiter:
        limiter.reset("k")
        connections = limiter.redis.connection_pool._available_connections
        assert [connection._sock is not None for connection in connections] == [True]
    assert not any(connection._sock for connection in connections)
    async with AsyncLimiter.from_url(redis_server.url, namespace="n") as aio_limiter:
        await aio_limiter.reset("k")
    async with AsyncMemoryLimiter() as aio_memory:
        assert await aio_memory.acquire("k", "1/minute")


def test_a_block_a_penalty_and_a_reward(subject: Subject) -> None:
    """`block` holds a key whatever its rates; `penalize` counts what they do not admit; `reward` takes back."""
    subject.limiter.block("k", "5m")
    hold = subject.limiter.acquire("k", "100/minute")
    assert (hold.time_left, hold.rule) == (timedelta(minutes=5), "blocked")
    with pytest.raises(LimitExceeded, match=r"^k: blocked; try again in 300\.000 s$"):
        subject.limiter.check("k", "100/minute")
    subject.limiter.block("k", timedelta(0))
    assert [subject.limiter.penalize("k", "3/minute", cost=cost).remaining for cost in (3, 2)] == [0, 0]
    assert subject.limiter.acquire("k", "3/minute").time_left == timedelta(minutes=1)
    assert subject.limiter.reward("k", 3) == 3
    assert [bool(subject.limiter.acquire("k", "3/minute")) for _ in range(2)] == [True, False]
    assert subject.limiter.reward("k", 100) == 3


def test_a_block_that_is_over_does_not_come_back(subject: Subject) -> None:
    """A step back of the clock revives no block that was ended, nor one since whose end a send went."""
    subject.limiter.block("k", "5s")
    subject.limiter.block("k", timedelta(0))
    subject.advance(-S)
    assert subject.limiter.acquire("k", "9/day")
    subject.limiter.block("k", "1s")
    subject.advance(2 * S)
    assert subject.limiter.acquire("k", "9/day")
    subject.advance(-S - 1)
    assert subject.limiter.acquire("k", "9/day")


@pytest.mark.parametrize("days", [-1, 367, 107_000_000, timedelta.max.days])
def test_a_span_is_up_to_366_days(subject: Subject, days: int) -> None:
    """A timedelta has the bounds of text: what does not fit into Redis's numbers would admit everything."""
    span = timedelta(days=days)
    for ask in (
        lambda limiter: limiter.block("k", span),
        lambda limiter: limiter.acquire("k", Window(1, span)),
        lambda limiter: limiter.add("k", keep=span),
        lambda limiter: limiter.count("k", last=span),
    ):
        with pytest.raises(ValueError, match="is outside what is allowed; give from 0s to 366d"):
            ask(subject.limiter)
    subject.limiter.block("k", timedelta(days=366))
    assert subject.limiter.acquire("k", "5/minute").time_left == timedelta(days=366)


@pytest.mark.parametrize("rates", [Burst(10**12, "366d"), Window(1, interval_us=10**18), Policy(gap_us=10**30)])
def test_no_send_is_needed_for_thousands_of_years(subject: Subject, rates: Any) -> None:
    """Redis has no number for it."""
    with pytest.raises(ValueError, match="1500 years at most: make a burst smaller, or a time shorter"):
        subject.limiter.acquire("k", rates)


@pytest.mark.parametrize("within", [1e15, float("inf"), timedelta.max, None])
def test_a_very_long_time_out_is_for_ever(subject: Subject, within: Any) -> None:
    """A caller that waits longer than any rule holds gets the next moment."""
    waits = [subject.limiter.reserve("k", "1/366d", within=within).wait for _ in range(3)]
    assert waits == [timedelta(0), timedelta(days=366), timedelta(days=732)]


def test_a_place_in_a_block_is_not_given(subject: Subject) -> None:
    """What was given back for a moment at which the key is blocked goes to nobody."""
    permits = [subject.limiter.reserve("k", "1/10s") for _ in range(5)]
    assert subject.limiter.refund(permits[1])
    subject.limiter.block("k", "15s")
    assert subject.limiter.reserve("k", "1/10s").wait_us == 50 * S
    assert subject.limiter.refund(permits[2])
    assert subject.limiter.reserve("k", "1/10s").wait_us == 20 * S
    assert isinstance(subject.limiter.reserve("k", "1/10s", within=timedelta(seconds=-1)), Hold), "it is too late"


@pytest.mark.parametrize("cost", [3, 1_000_000_000_000])
def test_what_is_given_back_makes_no_bucket_emptier(subject: Subject, cost: int) -> None:
    """Where more was counted than a bucket holds, a refund leaves it as it is, or fuller."""
    rates = f"burst {cost} then 1/10ms"
    permit = subject.limiter.check("k", rates)
    for _ in range(2):
        subject.limiter.penalize("k", rates, cost=cost)
    before = subject.limiter.peek("k", rates).time_left_us
    assert subject.limiter.refund(permit)
    assert subject.limiter.peek("k", rates).time_left_us <= before


@WITHOUT_ASYNCIO
def test_large_costs_stay_exact(subject: Subject) -> None:
    """Though all that was ever counted of a key is more than a float holds exactly."""
    limiter, most = subject.limiter, 10**12
    for _ in range(9_200):
        limiter.penalize("k", f"{most}/10s", cost=most - 1)
        subject.advance(1_000)
    subject.advance(10 * S)
    for _ in range(100):
        assert limiter.acquire("k", f"{most}/10s", cost=most // 100 - 1)
        subject.advance(1_000)
    assert limiter.peek("k", f"{most}/10s").remaining == 100


def test_days_and_months_by_the_calendar(subject: Subject) -> None:
    """A day begins at midnight of the zone, a month on its first; who waits gets the first moment that is free."""
    limiter = subject.make("calendar", zone="Europe/Berlin")
    midnight = 46 * M  # START is 23:14 there
    assert [limiter.acquire("k", "2/calendar-day").remaining for _ in range(2)] == [1, 0]
    hold = limiter.acquire("k", "2 per calendar day")
    assert (hold.time_left_us, hold.rule) == (midnight, "2/calendar-day")
    day = 24 * 60 * M
    waits = [limiter.reserve("k", "2/calendar-day").wait_us for _ in range(5)]
    assert waits == [midnight, midnight, midnight + day, midnight + day, midnight + 2 * day]
    assert limiter.acquire("quota", "30000/month", cost=30_000).reset_after == timedelta(
        microseconds=midnight + 16 * day
    )
    subject.advance(midnight + 16 * day)
    assert limiter.acquire("quota", "30000/month").remaining == 29_999
    with pytest.raises(ValueError, match="time zone"):
        subject.make("nowhere", zone="Middle-earth/Shire")


def test_permits_of_later_days_tell_what_is_left_of_their_day(subject: Subject) -> None:
    """Of each day, however far ahead; beside a short window the day is named where it has the least room."""
    permits = [subject.limiter.reserve("k", "2/calendar-day") for _ in range(9)]
    assert [(each.remaining, each.rule) for each in permits] == [(n, "2/calendar-day") for n in [1, 0] * 4 + [1]]
    ends = [each.reset_after - each.wait for each in permits]
    assert all(timedelta() < each <= timedelta(days=1) for each in ends)


def test_what_is_counted_in_any_case_tells_what_is_left_of_today(subject: Subject) -> None:
    """Though these rules were asked for on another day."""
    for _ in range(2):
        permit = subject.limiter.penalize("k", "5/calendar-day")
        assert permit.remaining == 4
        assert timedelta() < permit.reset_after <= timedelta(days=1)
        subject.advance(10 * 24 * 60 * M)


def test_a_permit_costs_what_was_used(subject: Subject) -> None:
    """`adjust` gives a permit another cost, more than the rules admit too, until it has lapsed or is given back."""
    permit = subject.limiter.check("k", "100000/minute", cost=30_000)
    assert subject.limiter.adjust(permit, 99_999)
    assert subject.limiter.peek("k", "100000/minute").remaining == 1
    assert subject.limiter.adjust(permit, 120_000)
    assert not subject.limiter.acquire("k", "100000/minute")
    assert subject.limiter.refund(permit)
    assert not subject.limiter.adjust(permit, 5)
    with pytest.raises(ValueError, match="whole number"):
        subject.limiter.adjust(permit, -1)


def test_a_slot(subject: Subject) -> None:
    """`slot` waits, and runs the block."""
    if isinstance(subject.limiter, Awaited):

        async def block() -> int:
            async with subject.limiter.limiter.slot("k", "1/20ms") as permit:
                return permit.wait_us

        assert [subject._runner.run(block()) for _ in range(2)] == [0, 20_000]
    else:
        waits = []
        for _ in range(2):
            with subject.limiter.slot("k", "1/20ms") as permit:
                waits.append(permit.wait_us)
        assert waits == [0, 20_000]


async def forever(asleep: asyncio.Event, _seconds: float) -> None:
    asleep.set()
    await asyncio.Event().wait()


async def test_a_cancelled_waiter_gives_its_place_back(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled while it waits leaves nothing behind."""
    monkeypatch.setattr(base, "BACK_S", PATIENCE_S)
    kwargs = redis.connection_pool.connection_kwargs
    limiter = AsyncLimiter.from_url(f"redis://{kwargs['host']}:{kwargs['port']}/{kwargs.get('db', 0)}", namespace="w")
    await limiter.acquire("k", "1/hour")
    asleep = asyncio.Event()
    monkeypatch.setattr(base, "_sleep", partial(forever, asleep))
    waiter = asyncio.create_task(limiter.wait("k", "1/hour"))
    await asleep.wait()
    assert (await limiter.peek("k", "1/hour")).time_left > timedelta(hours=1)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert (await limiter.peek("k", "1/hour")).time_left <= timedelta(hours=1)
    await limiter.aclose()


async def test_who_is_cancelled_does_not_wait_for_a_redis_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline is its own; the permit is given back when the answer comes."""
    monkeypatch.setattr(base, "BACK_S", 0)
    permit = MemoryLimiter().acquire("k", "1/hour")
    answers, returned = asyncio.Event(), asyncio.Queue[Permit]()

    async def ask() -> Permit | Hold:
        await answers.wait()
        return permit

    async def refund(back: Permit) -> bool:
        returned.put_nowait(back)
        return True

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await base.waited(ask(), refund)
        answers.set()
        assert await returned.get() == permit


async def test_async_functions_of_a_plain_limiter_wait_in_the_loop(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait, they keep no thread, and each that is cancelled gives its place back."""
    monkeypatch.setattr(base, "BACK_S", PATIENCE_S)
    limiter = Limiter(redis, namespace="w")

    @limiter.limit("1/hour", key="k", on_hold="wait")
    async def work() -> None:
        """Do nothing."""

    async def left() -> timedelta:
        answer = await asyncio.to_thread(limiter.peek, "k", "1/hour")
        return timedelta(0) if isinstance(answer, Permit) else answer.time_left

    await work()
    waiting = [asyncio.create_task(work()) for _ in range(40)]
    while await left() <= timedelta(hours=40):
        pass
    for task in waiting:
        task.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] * 40
    assert await left() <= timedelta(hours=1)


def test_an_object_whose_call_is_async_is_an_async_function() -> None:
    """A job's class is one: what asks for it must not hold up the event loop."""

    class Job:
        async def __call__(self) -> str:
            return "ran"

    limited = MemoryLimiter().limit("1/hour", key="k")(Job())
    assert inspect.iscoroutinefunction(limited)
    assert asyncio.run(limited()) == "ran"
    made = MemoryLimiter().limit("1/hour", key="k")(Job)()
    assert isinstance(made, Job), "to call its class awaits nothing"


async def test_an_async_function_that_is_cancelled_while_it_asks_gives_its_permit_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call goes on in its thread; what it brings is not kept."""
    monkeypatch.setattr(base, "BACK_S", PATIENCE_S)
    limiter, asks, may_ask = MemoryLimiter(), threading.Event(), threading.Event()

    def key() -> str:
        asks.set()
        may_ask.wait()
        return "k"

    @limiter.limit("1/hour", key=key)
    async def work() -> None:
        """Do nothing."""

    task = asyncio.create_task(work())
    await asyncio.to_thread(asks.wait)
    task.cancel()
    await asyncio.sleep(0)
    may_ask.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert limiter.count("k", last="1h") == 0


def test_rules_of_every_kind(subject: Subject) -> None:
    """Rates are text, rules, several of them, or the name of a configured limit."""
    limiter = subject.make("kinds", limits={"login": Policy((Window(1, "1m"),)), "signup": "1/minute"})
    rules = (Window(1, "1m"), Policy((Window(1, timedelta(minutes=1)),)), ["1/minute", "gap 1s"])
    for n, rates in enumerate(("1/minute", *rules, "login", "signup")):
        key = f"k{n}"
        assert isinstance(limiter.acquire(key, rates), Permit)
        assert isinstance(limiter.acquire(key, rates), Hold)
    burst = Burst(2, every_us=M)
    assert [type(limiter.acquire("b", burst)) for _ in range(3)] == [Permit, Permit, Hold]


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        (("k", "5 each minute"), ValueError, "is not a rate"),
        (("k", "login"), ValueError, "no limit is named 'login'"),
        (("k", 5), TypeError, "rates must be text"),
        (("k", ["5/minute", 5]), TypeError, "rates hold text, Window or Burst, not int"),
        (("k", iter(["5/minute"])), TypeError, "or a list of these, is list_iterator"),
        (("k", []), ValueError, r"rates are empty, and Policy\(\) is no rules"),
        ((42, "5/minute"), TypeError, "a key is text"),
        (("", "5/minute"), ValueError, "1 to 1024 bytes"),
        (("k" * 1025, "5/minute"), ValueError, "1 to 1024 bytes"),
        (("\ud800", "5/minute"), ValueError, "lone surrogate"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_enters(
    subject: Subject, arguments: tuple[Any, ...], error: type[Exception], why: str
) -> None:
    """Types and forms are checked where they enter, and the error says what would be right."""
    with pytest.raises(error, match=why):
        subject.limiter.acquire(*arguments)


def test_every_call_about_a_key_refuses_what_is_none(subject: Subject) -> None:
    """A door that is to be shut for nobody stays open: that is an error, and no call for all keys."""
    of = subject.limiter
    for call in (of.usage, of.reset, partial(of.block, for_="15m"), of.reward, partial(of.count, last="1h")):
        with pytest.raises(TypeError, match="a key is text, not NoneType"):
            call(None)


def test_a_cost_that_never_fits_is_refused(subject: Subject) -> None:
    """A cost over the limit would wait for ever."""
    with pytest.raises(ValueError, match="never fits into 5/1m"):
        subject.limiter.acquire("k", "5/minute", cost=6)


def test_a_namespace_has_a_form(redis: Redis) -> None:
    """A namespace stands in the names of keys."""
    with pytest.raises(ValueError, match="namespace"):
        Limiter(redis, namespace="a:b")


@pytest.mark.parametrize("prefix", ["", "shop:", "my shop", 5])
def test_a_prefix_has_the_form_of_the_configurations(redis: Redis, prefix: Any) -> None:
    """Another would count under keys that no configuration can name, and that no user of Redis may use."""
    with pytest.raises(ValueError, match="must be letters, digits and _"):
        Limiter(redis, namespace="login", prefix=prefix)


def test_a_fork_takes_no_turn_along(redis_server: EmbeddedRedis) -> None:
    """A thread of the parent is in a call while another forks: the child has all turns, as it has connections."""
    with Redis.from_url(redis_server.url, max_connections=1, socket_timeout=1) as client:
        limiter, calls, ends = Limiter(client, namespace="login"), threading.Event(), threading.Event()
        thread = threading.Thread(target=in_turn, args=(client, lambda: (calls.set(), ends.wait())))
        thread.start()
        assert calls.wait(10)
        child = multiprocessing.get_context("fork").Process(target=limiter.check, args=("k", "1/minute"))
        child.start()
        child.join()
        ends.set()
        thread.join()
        assert child.exitcode == 0
        assert isinstance(limiter.acquire("k", "1/minute"), Hold)


@pytest.mark.parametrize(("on_error", "answer"), [("hold", Hold), ("permit", Permit)])
def test_what_happens_without_redis_is_chosen(on_error: Any, answer: type) -> None:
    """Open or closed is chosen, never guessed; without a choice it raises."""
    url = "redis://127.0.0.1:1"
    assert isinstance(Limiter.from_url(url, namespace="n", on_error=on_error).acquire("k", "1/day"), answer)
    limiter = AsyncLimiter.from_url(url, namespace="n", on_error=on_error)
    assert isinstance(asyncio.run(limiter.acquire("k", "1/day")), answer)
    with pytest.raises(LimiterUnreachableError):
        Limiter.from_url(url, namespace="n").acquire("k", "1/day")
