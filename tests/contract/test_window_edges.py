"""What limiters of this kind are expected to do at the edges of windows, with Redis and in memory.

The facts are those that the test-suite of the package limits states for its moving window; the cases are written anew.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from notifier.limiter import Hold, Limiter, MemoryLimiter, Permit

START = 1_700_000_040_000_000
S = 1_000_000


class Clock:
    """A limiter whose clock the test moves."""

    def __init__(self, limiter: Any, tell: Callable[[Any, int], None]) -> None:
        self.limiter = limiter
        self._tell = tell
        self.now = START

    def advance(self, us: int) -> None:
        self.now += us
        self._tell(self.limiter, self.now)

    def hit(self, rates: str, key: str = "k", cost: int = 1) -> bool:
        return isinstance(self.limiter.acquire(key, rates, cost=cost), Permit)

    def test(self, rates: str, key: str = "k", cost: int = 1) -> bool:
        return isinstance(self.limiter.peek(key, rates, cost=cost), Permit)


@pytest.fixture(params=["redis", "memory"])
def at(request: pytest.FixtureRequest, redis: Redis) -> Clock:
    if request.param == "redis":
        return Clock(
            Limiter(redis, namespace="n", clock=str(START)),
            lambda limiter, now: setattr(limiter._requests, "clock", str(now)),
        )
    clock: Clock
    memory = MemoryLimiter(lambda: clock.now)
    clock = Clock(memory, lambda _limiter, _now: None)
    return clock


def test_a_window_is_full_until_its_first_leaves(at: Clock) -> None:
    """Ten go in ten seconds, one a second; the eleventh goes when the first is exactly as old as the window is long."""
    for _ in range(10):
        assert at.hit("10/10s")
        at.advance(S)
    assert at.hit("10/10s"), "the first was exactly ten seconds ago"
    assert not at.hit("10/10s")
    at.advance(S - 1)
    assert not at.hit("10/10s")
    at.advance(1)
    assert at.hit("10/10s")


def test_there_is_no_edge_at_which_twice_as_many_go(at: Clock) -> None:
    """At the end of one minute of the clock and the beginning of the next, together no more go than in any minute."""
    at.advance(60 * S - START % (60 * S) - 1)
    assert sum(at.hit("5/minute") for _ in range(6)) == 5
    at.advance(1)
    assert not at.hit("5/minute")
    at.advance(60 * S - 2)
    assert not at.hit("5/minute")
    at.advance(1)
    assert sum(at.hit("5/minute") for _ in range(6)) == 5


def test_each_leaves_at_its_own_time(at: Clock) -> None:
    """Room comes back as it was taken, not all at once."""
    assert at.hit("3/10s")
    at.advance(5 * S)
    assert at.hit("3/10s", cost=2)
    at.advance(5 * S)
    assert sum(at.hit("3/10s") for _ in range(3)) == 1
    at.advance(5 * S)
    assert sum(at.hit("3/10s") for _ in range(3)) == 2


def test_what_is_left_and_when_there_is_more(at: Clock) -> None:
    """The statistics of a window: how many remain, and when the first that counts leaves it."""
    permit = at.limiter.acquire("k", "3/10s")
    assert (permit.remaining, permit.reset_after) == (2, timedelta(seconds=10))
    at.advance(4 * S)
    permit = at.limiter.acquire("k", "3/10s")
    assert (permit.remaining, permit.reset_after) == (1, timedelta(seconds=6))
    at.advance(6 * S)
    look = at.limiter.peek("k", "3/10s")
    assert (look.remaining, look.reset_after) == (2, timedelta(seconds=4))
    at.advance(4 * S)
    look = at.limiter.peek("k", "3/10s")
    assert (look.remaining, look.reset_after) == (3, timedelta(0))


def test_a_look_takes_nothing_and_agrees(at: Clock) -> None:
    """Whenever a look admits, so does the call after it; and the other way round."""
    for step in range(40):
        admits = at.test("4/3s")
        assert at.hit("4/3s") == admits
        at.advance(S // 4 if step % 5 else S)


def test_a_cost_goes_whole_or_not_at_all(at: Clock) -> None:
    """A call that costs more than is left takes nothing of what is left."""
    assert at.hit("10/minute", cost=8)
    assert not at.hit("10/minute", cost=3)
    assert at.hit("10/minute", cost=2)
    assert not at.test("10/minute")
    at.advance(60 * S)
    assert at.hit("10/minute", cost=10)
    with pytest.raises(ValueError, match="never fits"):
        at.hit("10/minute", cost=11)


def test_several_windows_of_one_call(at: Clock) -> None:
    """All of them count what one call takes; the one that refuses says so, and the others keep what they have."""
    rates = "2/second; 3/minute"
    assert [at.hit(rates) for _ in range(3)] == [True, True, False]
    at.advance(S)
    assert [at.hit(rates) for _ in range(2)] == [True, False]
    match at.limiter.acquire("k", rates):
        case Hold(time_left=left, rule=rule):
            assert (left, rule) == (timedelta(seconds=59), "3/1m")
        case other:
            raise AssertionError(other)


def test_keys_do_not_know_each_other(at: Clock) -> None:
    """What one key takes, no other misses; to forget one forgets no other."""
    assert all(at.hit("1/day", key) for key in ("a", "b", "a:b", "{a}", "é"))
    assert at.limiter.reset("a") == 1
    assert [at.hit("1/day", key) for key in ("a", "b", "a:b", "{a}", "é")] == [True, False, False, False, False]
