"""What permits promise: one suite over the scripts of `Notifier.acquire` and over memory, as FakeNotifier has it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from redis import Redis

from notifier.limiter import Hold
from notifier.producer.permits import UserPermit
from notifier.queue import calls
from notifier.queue.calls import Job
from notifier.rules.category import Category
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Burst, Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.asking import InMemory, InRedis
from tests.harness.support import eventually, let_pass
from tests.harness.take import take

START = 1_700_000_000_000_000
S = 1_000_000
M = 60 * S
THREE = Policy((Window(3, interval_us=M),))
META = b'{"user": "ann", "category": "default"}'
ODD_USERS = ("a", "a}:chat", "{a}", "a:chat", "ü", "u\u0308", " a ", "a\n", "x" * 200, "*")


class Clock:
    """The time as the test has it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class ClockedRedis(InRedis):
    """The Redis limiter on the test's clock."""

    def __init__(self, redis: Redis, now: Callable[[], int]) -> None:
        self._now, self._last, self._real = now, now(), time.monotonic_ns()
        super().__init__(redis)

    @property
    def clock(self) -> str:
        now, real = self._now(), time.monotonic_ns()
        ahead_us = now - self._last - (real - self._real) // 1_000
        if abs(ahead_us) > 2_000:  # keys expire by the ms
            let_pass(self.redis, ahead_us)
            self._last, self._real = now, real
        return str(now)

    @clock.setter
    def clock(self, value: str) -> None:
        pass


@dataclass
class Subject:
    """A limiter, and its clock."""

    limiter: InRedis | InMemory
    clock: Clock


@pytest.fixture(params=["redis", "memory"])
def subject(request: pytest.FixtureRequest) -> Subject:
    clock = Clock()
    if request.param == "memory":
        return Subject(InMemory(clock), clock)
    return Subject(ClockedRedis(request.getfixturevalue("redis"), clock), clock)


def permit(answer: UserPermit | Hold) -> UserPermit:
    assert isinstance(answer, UserPermit)
    return answer


def test_acquire_takes_and_tells(subject: Subject) -> None:
    """A permit names what it is for and when; after it the gap holds for exactly its length."""
    chat = Category("chat", policy=Policy((Window(5, interval_us=M),)))
    rules = Rules(Policy(gap_us=M), chat)
    first = permit(subject.limiter.acquire("ann", rules, cost=2))
    assert (first.user, first.category, first.cost, first.at_us) == ("ann", "chat", 2, START)
    subject.clock.now += 1
    assert subject.limiter.acquire("ann", rules) == Hold(M - 1, "user gap 1m")
    subject.clock.now += M - 1
    assert permit(subject.limiter.acquire("ann", rules)).at_us == START + M
    assert subject.limiter.acquire("bob", Policy(gap_us=M)) != subject.limiter.acquire("ann", rules)


def test_the_refund_of_a_bypass_gives_back_what_the_bucket_lost(subject: Subject) -> None:
    """It found the bucket empty and took nothing out, so nothing comes back."""
    rules = Rules(Policy(burst=Burst(3, every_us=M)), Category("chat"))
    for _ in range(3):
        permit(subject.limiter.acquire("bob", rules))
    subject.clock.now += S
    beside = permit(subject.limiter.acquire("bob", replace(rules, category=Category("alarm", bypass=True))))
    subject.clock.now += S
    assert isinstance(subject.limiter.acquire("bob", rules), Hold)
    assert subject.limiter.refund(beside)
    held = subject.limiter.acquire("bob", rules)
    assert isinstance(held, Hold)
    assert held.time_left_us == pytest.approx(58 * S, abs=S)


def test_nor_does_more_come_back_to_a_bucket_that_is_always_empty(subject: Subject) -> None:
    """What it is short of was taken long before: a bypass beside that gives back nothing."""
    rules = Rules(Policy(burst=Burst(3, every_us=M)), Category("chat"))
    for n in range(12):
        permit(subject.limiter.acquire("bob", rules))
        subject.clock.now += M if n >= 2 else 0
    subject.clock.now -= 50 * S
    beside = permit(subject.limiter.acquire("bob", replace(rules, category=Category("alarm", bypass=True))))
    subject.clock.now += S
    assert isinstance(subject.limiter.acquire("bob", rules), Hold)
    assert subject.limiter.refund(beside)
    assert isinstance(subject.limiter.acquire("bob", rules), Hold)


def test_bypass_is_counted_and_never_held(subject: Subject) -> None:
    """A category that bypasses goes past every rule, and what it sends counts for the others."""
    security = Rules(THREE, Category("security", policy=Policy((Window(1, interval_us=M),)), bypass=True))
    for _ in range(5):
        permit(subject.limiter.acquire("ann", security))
    assert subject.limiter.acquire("ann", THREE) == Hold(M, "user 3/1m")


def test_sends_of_one_microsecond_are_all_counted(subject: Subject) -> None:
    """However many sends fall into one microsecond, each is one."""
    policy = Policy((Window(500, interval_us=M),))
    ids = {permit(subject.limiter.acquire("ann", policy)).id for _ in range(400)}
    permit(subject.limiter.acquire("ann", policy, cost=100))
    assert len(ids) == 400
    assert subject.limiter.acquire("ann", policy) == Hold(M, "user 500/1m")


def test_narrower_rules_forget_nothing_that_others_ask_for(subject: Subject) -> None:
    """Law 1: whoever acquires by a part of the rules, the whole of them counts what was sent all day."""
    wide = Policy((Window(3, interval_us=24 * 60 * M),))
    for narrow in (
        Policy((Window(10, interval_us=M),)),
        Policy((Window(1_001, interval_us=M, precision_us=S),)),
        Policy(burst=Burst(20, every_us=S)),
    ):
        permit(subject.limiter.acquire(str(narrow), wide))
        for _ in range(20):
            subject.clock.now += 2 * M
            permit(subject.limiter.acquire(str(narrow), narrow))
        assert isinstance(subject.limiter.acquire(str(narrow), wide), Hold)
        assert subject.limiter.known(str(narrow)) == 21


def test_users_of_odd_names_are_kept_apart(subject: Subject) -> None:
    """No two names share their sends, whatever is in them, nor does a user share them with a category."""
    once = Policy((Window(1, interval_us=M),))
    for user in ODD_USERS:
        permit(subject.limiter.acquire(user, Rules(once, Category("chat", policy=once))))
    for user in ODD_USERS:
        assert isinstance(subject.limiter.acquire(user, once), Hold)
        assert subject.limiter.known(user) == 1


def test_a_long_window_takes_no_quadratic_time(subject: Subject) -> None:
    """A call on a window of 8,000 sends takes about as long as one on a window of 100."""
    policies = {limit: Policy((Window(limit, interval_us=60 * M),)) for limit in (100, 8_000)}
    for limit, policy in policies.items():
        for n in range(limit // 50):
            subject.clock.now += 1
            permit(subject.limiter.acquire(f"user of {limit}", policy, cost=50 if n else 49))
    # In turn, as a machine may be slow for a while: it is slow for both then.
    took = [{limit: ask_twice(subject, policy, limit) for limit, policy in policies.items()} for _ in range(30)]
    assert min(each[8_000] for each in took) < 5 * min(each[100] for each in took)


def ask_twice(subject: Subject, policy: Policy, limit: int) -> float:
    """Ask for the last place of a window, and for one more; returns the seconds that took, and leaves it as it was."""
    user = f"user of {limit}"
    subject.clock.now += 1
    begin = time.perf_counter()
    taken = permit(subject.limiter.acquire(user, policy))
    assert isinstance(subject.limiter.acquire(user, policy), Hold)
    took = time.perf_counter() - begin
    assert subject.limiter.refund(taken)
    return took


def test_threads_share_one_limiter(redis: Redis) -> None:
    """Law 1: however many threads ask at once, no more than the window holds are let through."""
    policy = Policy((Window(50, interval_us=M),))
    limiter, granted = InRedis(redis), list[UserPermit]()

    def ask() -> None:
        for _ in range(40):
            answer = limiter.acquire("ann", policy)
            if isinstance(answer, UserPermit):
                granted.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({taken.id for taken in granted}) == len(granted) == 50


def test_redis_keeps_a_send_for_as_long_as_a_rule_asks(redis: Redis) -> None:
    """The keys of a user live for the longest rule and not much longer, each as its own rules say."""
    rules = Rules(
        Policy((Window(5, interval_us=M),), gap_us=5 * M),
        Category("chat", policy=Policy((Window(2, interval_us=3 * M),))),
    )
    permit(InRedis(redis).acquire("ann", rules))
    for key, horizon_us in (("notifier:sent:{ann}", 5 * M), ("notifier:sent:{ann}:chat", 3 * M)):
        assert horizon_us / 1000 - 2_000 <= redis.pttl(key) <= horizon_us / 1000 + 2


def test_a_send_of_now_does_not_shorten_what_is_in_flight(redis: Redis) -> None:
    """Law 1: a permit that a worker holds is remembered for its lease and the longest rule after it."""
    lease_us = 60 * S
    rules = Policies(THREE)
    job = Job("job", "default", b"", META)
    run(redis, calls.enqueue([job], dedupe_for_us=S, stamp=""))
    worker = calls.Worker(name="w", lanes=["default"], lease_us=lease_us)
    assert take(redis, worker, calls.Room(9), RuleTable(rules)).leased
    permit(InRedis(redis).acquire("ann", THREE))
    assert redis.pttl("notifier:sent:{ann}") > (lease_us + M) / 1000 - 5_000


def test_few_sends_renew_how_long_a_set_lives(redis: Redis) -> None:
    """A set with sends in flight lives an eighth longer than its rules ask: the next send renews nothing."""
    lease_us, rules = 60 * S, RuleTable(Policies(THREE))

    def send_one(name: str) -> int:
        """How often this sets the life of a key."""
        run(redis, calls.enqueue([Job(name, "default", b"", META)], dedupe_for_us=S, stamp=""))
        redis.config_resetstat()
        assert take(redis, calls.Worker(name="w", lanes=["default"], lease_us=lease_us), calls.Room(9), rules).leased
        ran: Any = redis.info("commandstats")
        return int(ran.get("cmdstat_pexpire", {"calls": 0})["calls"])

    assert send_one("first") == 1
    asked_ms = (lease_us + M) / 1000
    assert asked_ms < redis.pttl("notifier:sent:{ann}") <= asked_ms * 9 / 8 + 2
    assert send_one("second") == 0


def test_redis_holds_no_more_than_the_window(redis: Redis) -> None:
    """Memory is bounded: what has lapsed goes as new sends come, and an idle user leaves nothing."""
    clock = Clock()
    limiter = ClockedRedis(redis, clock)
    for _ in range(100):
        clock.now += M // 2
        permit(limiter.acquire("ann", THREE))
    assert redis.zcard("notifier:sent:{ann}") <= 3
    permit(InRedis(redis).acquire("bob", Policy((Window(3, interval_us=1_000),))))
    eventually(lambda: redis.keys("notifier:sent:{bob}*") == [], "bob's key to expire")


def test_a_bucketed_window_takes_the_same_memory_whatever_its_limit(redis: Redis) -> None:
    """What is kept is bounded by the buckets: 96 of them, not 2,000 sends."""
    clock, day = Clock(), 24 * 60 * M
    limiter = ClockedRedis(redis, clock)
    policy = Policy((Window(2_000, interval_us=day, precision_us=day // 96),))
    for _ in range(400):
        permit(limiter.acquire("ann", policy, cost=5))
        clock.now += day // 402
    assert isinstance(limiter.acquire("ann", policy), Hold)
    assert redis.zcard("notifier:sent:{ann}") + redis.zcard("notifier:counts:{ann}") <= 96 + 16
    assert {key.partition(b":{")[0] for key in redis.keys("notifier:*{ann}")} == {b"notifier:sent", b"notifier:counts"}


def test_a_bucketed_window_takes_no_more_memory_at_the_highest_cost(redis: Redis) -> None:
    """As many are counted in buckets at each call as it may add."""
    clock = Clock()
    limiter = ClockedRedis(redis, clock)
    for _ in range(60):
        permit(limiter.acquire("ann", Policy((Window(100_000, interval_us=60 * M, precision_us=M),)), cost=100))
        clock.now += M
    assert redis.zcard("notifier:sent:{ann}") <= 200


def test_a_window_of_a_thousand_is_exact(subject: Subject) -> None:
    """Law 3 holds past 128 entries, where Redis changes how it stores a set."""
    policy = Policy((Window(1_000, interval_us=M),))
    for _ in range(1_000):
        subject.clock.now += 7
        permit(subject.limiter.acquire("ann", policy))
    assert subject.limiter.acquire("ann", policy) == Hold(M - 7 * 999, "user 1000/1m")
    subject.clock.now += M - 7 * 999
    permit(subject.limiter.acquire("ann", policy))
    assert subject.limiter.acquire("ann", policy) == Hold(7, "user 1000/1m")


def test_the_clock_is_the_servers(redis: Redis) -> None:
    """Law 6: where no test gives a clock, the time of a permit is Redis's own, in microseconds."""
    before, taken, after = redis.time(), permit(InRedis(redis).acquire("ann", THREE)), redis.time()
    assert before[0] * S + before[1] <= taken.at_us <= after[0] * S + after[1]
