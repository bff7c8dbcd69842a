"""Limiter: exact rolling windows, a gap and bursts for any key, in one round trip to Redis."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

import redis
from redis.exceptions import RedisError

from notifier.errors import LimiterUnreachableError
from notifier.limiter.answers import LimitExceeded, Point, RankedKey, Usage
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Limits, Rates
from notifier.limiter.requests import Asked, By, Mode, Request, Requests
from notifier.rules.policy import Policy
from notifier.scripts.loader import Call, run
from notifier.scripts.packed import send
from notifier.store.connection import connect

OnError: TypeAlias = Literal["raise", "hold", "permit"]
OnHold: TypeAlias = Literal["raise", "wait", "return"]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
UNREACHABLE: Final = "the limiter cannot be asked"
RETRY_US: Final = 1_000_000  # what a Hold says where nobody knows


class Asking:
    """What builds its calls by `Requests`."""

    _requests: Requests

    def policy(self, rates: Rates) -> Policy:
        """The rules that `rates` are. Raises where they cannot be meant: so a program can check them at its start."""
        return self._requests.policy(rates)


class KeyLimiter(Asking, ABC):
    """What `Limiter` and `MemoryLimiter` have in common: everything that follows from asking.

    `acquire` answers with a value; `check` raises; `wait` sleeps. A refused attempt is not a send: asking again and
    again never pushes the next moment away.
    """

    @abstractmethod
    def _ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None
    ) -> list[Permit | Hold]:
        """Answer each request."""

    def acquire(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        """Take the right to go now, by all rules or by none, or learn how long is left.

        rates: text such as ``"5/minute; 100/day; gap 200ms"``, rules, or the name of configured limits. cost: as how
        many it counts in every window, 100 at most. Raises ValueError where it can never fit.
        """
        return self._ask([self._requests.request(key, rates, cost)], "take", 0)[0]

    def acquire_many(self, asked: Iterable[Asked]) -> list[Permit | Hold]:
        """`acquire` for many keys in one round trip: (key, rates) or (key, rates, cost) each, in order."""
        return self._ask([self._requests.request(*each) for each in asked], "take", 0)

    def peek(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        """What `acquire` would answer, without taking anything."""
        return self._ask([self._requests.request(key, rates, cost)], "look", 0)[0]

    def check(self, key: str, rates: Rates, *, cost: int = 1) -> Permit:
        """`acquire`, or raise LimitExceeded."""
        return permit_of(key, self.acquire(key, rates, cost=cost))

    def add(self, key: str, cost: int = 1, *, keep: str | timedelta = "1d") -> Permit:
        """Count what has happened already: it is never refused. keep: how long it is known at least."""
        (permit,) = self._ask([self._requests.added(key, cost, keep)], "add", 0)
        assert isinstance(permit, Permit)
        return permit

    def wait(self, key: str, rates: Rates, *, cost: int = 1, timeout: str | timedelta | float | None = None) -> Permit:
        """Sleep exactly until it may go, in order of arrival among all that wait for the key.

        The permit is taken at once and dated ahead, so nobody is woken in vain. timeout: raise LimitExceeded, at once,
        where it would take longer; None is for ever.
        """
        permit = permit_of(key, self._ask([self._requests.request(key, rates, cost)], "take", timeout)[0])
        try:
            self._sleep(permit.wait_us / 1e6)
        except BaseException:
            self.refund(permit)
            raise
        return permit

    @contextmanager
    def slot(
        self, key: str, rates: Rates, *, cost: int = 1, timeout: str | timedelta | float | None = None
    ) -> Iterator[Permit]:
        """`with limiter.slot("key", "10/s"):` waits, and then runs the block."""
        yield self.wait(key, rates, cost=cost, timeout=timeout)

    def limit(
        self,
        rates: Rates,
        *,
        key: str | Callable[..., str],
        cost: int = 1,
        on_hold: OnHold = "raise",
        timeout: str | timedelta | float | None = None,
    ) -> Callable[[F], F]:
        """Limit a function, plain or async. key: text, or what makes it of the arguments of the call.

        on_hold: "raise" LimitExceeded, "wait" until it may go, or "return" the Hold in place of the result. An async
        function asks in a thread, so that the event loop never waits for Redis; `AsyncLimiter` needs none.
        """
        check_on_hold(on_hold)

        def ask(*args: Any, **kwargs: Any) -> Permit | Hold:
            of = key(*args, **kwargs) if callable(key) else key
            if on_hold == "wait":
                return self.wait(of, rates, cost=cost, timeout=timeout)
            return self.check(of, rates, cost=cost) if on_hold == "raise" else self.acquire(of, rates, cost=cost)

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def limited_async(*args: Any, **kwargs: Any) -> Any:
                    answer = await asyncio.to_thread(ask, *args, **kwargs)
                    return answer if isinstance(answer, Hold) else await function(*args, **kwargs)

                return limited_async  # type: ignore[return-value]

            @functools.wraps(function)
            def limited(*args: Any, **kwargs: Any) -> Any:
                answer = ask(*args, **kwargs)
                return answer if isinstance(answer, Hold) else function(*args, **kwargs)

            return limited  # type: ignore[return-value]

        return decorate

    @abstractmethod
    def refund(self, permit: Permit) -> bool:
        """Take a permit back because nothing came of it; False where it has lapsed or was taken back before."""

    @abstractmethod
    def reset(self, key: str) -> int:
        """Forget a key; returns how many sends were forgotten."""

    @abstractmethod
    def count(self, key: str, *, last: str | timedelta) -> int:
        """How many sends of a key fall into the span that ends now, as far as its rules keep them."""

    @abstractmethod
    def usage(self, key: str) -> Usage:
        """Totals, first and last use, and rates of a key. Needs `usage_keep`."""

    @abstractmethod
    def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        """The keys used most, last, fastest (over the last hour) or held most. Needs `usage_keep`."""

    @abstractmethod
    def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        """How many in each step of the span that ends now, of a key or of all. Needs `usage_keep`."""

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class InRedis(Asking):
    """What a limiter in Redis is made of, whatever its client."""

    def __init__(
        self,
        client: Any,
        *,
        namespace: str,
        limits: Limits | None = None,
        on_error: OnError = "raise",
        usage_keep: str | timedelta | None = None,
        clock: str = "",
    ) -> None:
        """client: a `redis.Redis`; of AsyncLimiter a `redis.asyncio.Redis`. limits: policies by name, for `rates`, or
        a function that gives those of now.

        on_error: what to answer where Redis cannot be asked: "raise" LimiterUnreachableError, "hold" (closed) or
        "permit" (open). usage_keep: count totals, ranks and series, known for so long after a key's last use. clock:
        for tests.
        """
        self.redis = client
        self.on_error: OnError = on_error
        self._requests = Requests(namespace, limits=limits, usage_keep=usage_keep, clock=clock)


class Limiter(InRedis, KeyLimiter):
    """A limiter of its own namespace in Redis, shared by every process and machine; see `KeyLimiter`.

    It never touches what the workers count for users' push notifications. Time is Redis's.
    """

    @classmethod
    def from_url(cls, url: str, *, namespace: str, **options: Any) -> Self:
        """A limiter on the Redis of a URL. options: as of the constructor."""
        return cls(redis.Redis.from_url(url, protocol=2), namespace=namespace, **options)

    @classmethod
    def from_config(cls, path: str | Path | None = None, *, namespace: str, **options: Any) -> Self:
        """A limiter on the Redis of a configuration, found as `Notifier.from_config` does, with its `limits` by name.

        They are live: a changed file, or rates applied by `notifier config apply`, hold within two seconds. options: as
        of the constructor. Raises SettingsError where the configuration cannot be used, or has several shards.
        """
        from notifier.limiter.live import LiveLimits  # noqa: PLC0415 - YAML and pydantic are for who has a configuration

        live = LiveLimits(path)
        return cls(connect(live.settings), namespace=namespace, limits=live.now, **options)

    def _ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None
    ) -> list[Permit | Hold]:
        try:
            call = self._requests.ask(requests, mode, ahead)
            answers = send(self.redis, call)
            if len(answers) < len(requests):
                rest = self._requests.ask_any(requests[len(answers) :], mode, ahead)
                answers = answers + send(self.redis, rest)
        except RedisError as error:
            return unanswered(requests, self.on_error, error)
        return answers

    def refund(self, permit: Permit) -> bool:
        """See `KeyLimiter.refund`."""
        return bool(permit.id) and self._run(self._requests.refund(permit))

    def reset(self, key: str) -> int:
        """See `KeyLimiter.reset`."""
        return self._run(self._requests.reset(key))

    def count(self, key: str, *, last: str | timedelta) -> int:
        """See `KeyLimiter.count`."""
        return self._run(self._requests.count(key, last))

    def usage(self, key: str) -> Usage:
        """See `KeyLimiter.usage`."""
        return self._run(self._requests.usage(key))

    def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        """See `KeyLimiter.top`."""
        return self._run(self._requests.top(count, by, ascending=ascending))

    def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        """See `KeyLimiter.series`."""
        return self._run(self._requests.series(key, last, step))

    def _run(self, call: Call[T]) -> T:
        try:
            return run(self.redis, call)
        except RedisError as error:
            raise unreachable(error) from error


def permit_of(key: str, answer: Permit | Hold) -> Permit:
    """The permit, or raise LimitExceeded."""
    if isinstance(answer, Hold):
        raise LimitExceeded(key, answer, answer.policy or Policy())
    return answer


def check_on_hold(on_hold: str) -> None:
    """Raise ValueError for what `limit` cannot do."""
    if on_hold not in {"raise", "wait", "return"}:
        raise ValueError(f"on_hold is raise, wait or return, not {on_hold!r}")


def unanswered(requests: Sequence[Request], on_error: OnError, error: Exception) -> list[Permit | Hold]:
    """What a limiter answers where Redis could not be asked."""
    if on_error == "raise":
        raise unreachable(error) from error
    if on_error == "hold":
        return [Hold(RETRY_US, UNREACHABLE, policy=request.policy, key=request.key) for request in requests]
    return [Permit("", request.key, None, request.cost, time.time_ns() // 1000) for request in requests]


def unreachable(error: Exception) -> LimiterUnreachableError:
    """What a limiter raises where Redis could not be asked."""
    return LimiterUnreachableError(f"Redis cannot be used by the limiter: {error}")
