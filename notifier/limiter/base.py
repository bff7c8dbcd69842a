"""KeyLimiter: the methods that limiters of keys share. A subclass only says how it asks its store."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Literal, ParamSpec, Protocol, Self, TypeAlias, TypeVar, overload

from notifier.errors import LimiterUnreachableError
from notifier.limiter.answers import LimitExceeded, Point, RankedKey, Usage
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Rates
from notifier.limiter.requests import Asked, By, Mode, Request, Requests, Timeout
from notifier.rules.policy import Policy

OnHold: TypeAlias = Literal["raise", "wait", "return"]
RatesOf: TypeAlias = "Rates | Callable[..., Rates]"
KeyOf: TypeAlias = str | Callable[..., str]
CostOf: TypeAlias = int | Callable[..., int]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")
Refund = Callable[[Permit], Coroutine[Any, Any, bool]]
BACK_S: Final = 0.5  # a cancelled task waits this long for its refund, and no longer: Redis may hang
_GIVEN_BACK: Final[set[asyncio.Task[None]]] = set()  # the event loop has only weak references to its tasks


class Returning(Protocol):
    """A decorator: the function, plain or async, returns a Hold if the limiter refuses a permit."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | Hold]]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | Hold]: ...


class Asking:
    """Base of all limiters: rates and requests are checked by `Requests`."""

    _requests: Requests

    def policy(self, rates: Rates) -> Policy:
        """Return the rules of `rates`. Raises if they are wrong, so a program can check them at its start."""
        return self._requests.policy(rates)

    def _decorating(
        self, rates: RatesOf, key: KeyOf, cost: CostOf, on_hold: str
    ) -> Callable[..., tuple[str, Rates, int]]:
        """Return a function from a call's arguments to key, rates and cost. Raises at once for wrong options."""
        if on_hold not in {"raise", "wait", "return"}:
            raise ValueError(f"on_hold is raise, wait or return, not {on_hold!r}")
        if not callable(rates):
            self._requests.request("key", rates, 1 if callable(cost) else cost)
        made = (key, rates, cost)

        def asked(*args: Any, **kwargs: Any) -> tuple[str, Rates, int]:
            of, by, many = (each(*args, **kwargs) if callable(each) else each for each in made)
            return of, by, many  # type: ignore[return-value]

        return asked


class KeyLimiter(Asking, ABC):
    """Base of `Limiter` and `MemoryLimiter`: the methods that both share."""

    @abstractmethod
    def _ask(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        """Answer each request."""

    @abstractmethod
    def _run(self, call: Callable[[Any], T]) -> T:
        """Apply `call` to the keys in memory; or to `RedisRequests`, and send the call of Redis that it builds."""

    def close(self) -> None:
        """Close the connections, if there are any; `with` does it too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        """Take a permit if all rules allow it; otherwise return a Hold, which says how long to wait.

        rates: text such as ``"5/minute; 100/day; gap 200ms"``, rules, or the name of configured limits.
        cost: how many sends it counts as, in every window.

        Raises ValueError if the cost is more than the rates ever allow.
        """
        return self._ask([self._requests.request(key, rates, cost)], "take", 0)[0]

    def acquire_many(self, asked: Iterable[Asked]) -> list[Permit | Hold]:
        """`acquire` for many keys in one round trip: (key, rates) or (key, rates, cost) each, in order."""
        return self._ask([self._requests.request(*each) for each in asked], "take", 0)

    def acquire_all(self, asked: Iterable[Asked]) -> list[Permit] | Hold:
        """Take a permit of each of these keys, or of none: (key, rates) or (key, rates, cost) each.

        Returns the permits, in order. If one key is held, it takes nothing, and returns the Hold with the longest time
        left.
        """
        return all_or_none(self._ask_every(asked))

    def _ask_every(self, asked: Iterable[Asked]) -> list[Permit | Hold]:
        """Answer each request. Permits are taken only if no request is held."""
        return self._ask(self._requests.every(asked), "every", 0)

    def peek(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        """Return what `acquire` would answer, without taking anything."""
        return self._ask([self._requests.request(key, rates, cost)], "look", 0)[0]

    def check(self, key: str, rates: Rates, *, cost: int = 1) -> Permit:
        """`acquire`, or raise LimitExceeded."""
        return permit_of(key, self.acquire(key, rates, cost=cost))

    def add(self, key: str, cost: int = 1, *, keep: str | timedelta = "1d") -> Permit:
        """Count something that has already happened. It is never refused.

        keep: it counts for at least this time.
        """
        return permit_of(key, self._ask([self._requests.added(key, cost, keep)], "add", 0)[0])

    def wait(self, key: str, rates: Rates, *, cost: int = 1, timeout: Timeout = None) -> Permit:
        """Sleep exactly as long as needed, then return a permit; callers for one key go in the order of arrival.

        timeout: if the wait would be longer, raise LimitExceeded at once; None is without limit.
        """
        permit = permit_of(key, self.reserve(key, rates, cost=cost, within=timeout))
        self._wait_for(permit)
        return permit

    def reserve(self, key: str, rates: Rates, *, cost: int = 1, within: Timeout = None) -> Permit | Hold:
        """Take the next free moment, and do not sleep: `permit.wait` says how long it is until then.

        So each task gets its own moment. (A Hold would give the same moment to all.) If the task is cancelled, give the
        permit back with `refund`: then another caller gets the moment.

        within: how far ahead the moment may be; None is without limit.
        """
        return self._ask([self._requests.request(key, rates, cost)], "take", within)[0]

    @contextmanager
    def slot(self, key: str, rates: Rates, *, cost: int = 1, timeout: Timeout = None) -> Iterator[Permit]:
        """`with limiter.slot("key", "10/s"):` waits, and then runs the block."""
        yield self.wait(key, rates, cost=cost, timeout=timeout)

    @overload
    def limit(
        self,
        rates: RatesOf,
        *,
        key: KeyOf,
        cost: CostOf = 1,
        on_hold: Literal["raise", "wait"] = "raise",
        timeout: Timeout = None,
    ) -> Callable[[F], F]: ...

    @overload
    def limit(
        self, rates: RatesOf, *, key: KeyOf, cost: CostOf = 1, on_hold: Literal["return"], timeout: Timeout = None
    ) -> Returning: ...

    def limit(
        self, rates: RatesOf, *, key: KeyOf, cost: CostOf = 1, on_hold: OnHold = "raise", timeout: Timeout = None
    ) -> Any:
        """Limit a function, plain or async. `rates`, `key` and `cost` may be functions of the call's arguments.

        on_hold: "raise" LimitExceeded, "wait" for a permit, or "return" the Hold instead of the result.

        For an async function, a thread asks Redis, so that the event loop does not wait; `AsyncLimiter` needs no
        thread. If the rates or the cost are wrong, `limit` raises at once, as `acquire` does.
        """
        asked = self._decorating(rates, key, cost, on_hold)

        def ask(*args: Any, **kwargs: Any) -> Permit | Hold:
            of, by, many = asked(*args, **kwargs)
            answer = self.reserve(of, by, cost=many, within=timeout if on_hold == "wait" else 0)
            return answer if on_hold == "return" else permit_of(of, answer)

        def decorate(function: Any) -> Callable[..., Any]:
            if inspect.isasyncgenfunction(function):
                raise TypeError("an async generator cannot be limited: limit an async function that goes through it")
            if is_async(function):

                @functools.wraps(function)
                async def limited_async(*args: Any, **kwargs: Any) -> Any:
                    asking = asyncio.to_thread(ask, *args, **kwargs)
                    answer = await waited(asking, lambda permit: asyncio.to_thread(self.refund, permit))
                    return answer if isinstance(answer, Hold) else await function(*args, **kwargs)

                return limited_async

            @functools.wraps(function)
            def limited(*args: Any, **kwargs: Any) -> Any:
                answer = ask(*args, **kwargs)
                if isinstance(answer, Hold):
                    return answer
                self._wait_for(answer)
                return function(*args, **kwargs)

            return limited

        return decorate

    def adjust(self, permit: Permit, used: int) -> bool:
        """Change the cost of a permit to what was really used: a model's tokens, the bytes of a response.

        The new cost may be more than the rules allow: then the next callers wait longer. Returns False if the permit
        does not count any more, or was given back.
        """
        return bool(permit.id) and self._adjust(permit, used)

    def _adjust(self, permit: Permit, used: int) -> bool:
        return bool(self._run(lambda of: of.adjust(permit, used)))

    def refund(self, permit: Permit) -> bool:
        """Give back an unused permit. Returns False if it does not count any more, or was given back before."""
        return self.adjust(permit, 0)

    def penalize(self, key: str, rates: Rates, *, cost: int = 1) -> Permit:
        """Add `cost` to the count of a key, even if its rates would allow no more.

        Raises ValueError if the rates never allow so much at once.
        """
        return permit_of(key, self._ask([self._requests.request(key, rates, cost)], "add", 0)[0])

    def reward(self, key: str, cost: int = 1) -> int:
        """Subtract `cost` from the latest permits, at most 127 of them; returns how much was subtracted."""
        return int(self._run(lambda of: of.reward(key, cost)))

    def block(self, key: str, for_: str | timedelta) -> None:
        """Refuse all permits of a key for this time, whatever its rates; `timedelta(0)` or `reset` ends the block."""
        self._run(lambda of: of.block(key, for_))

    def reset(self, key: str) -> int:
        """Delete all counts of a key; returns how many sends were deleted."""
        return int(self._run(lambda of: of.reset(key)))

    def count(self, key: str, *, last: str | timedelta) -> int:
        """How many sends of a key are in the interval that ends now, as far back as its rules keep sends."""
        return int(self._run(lambda of: of.count(key, last=last)))

    def usage(self, key: str) -> Usage:
        """Totals, first and last use, and rates of a key. Needs `usage_keep`."""
        found: Usage = self._run(lambda of: of.usage(key))
        return found

    def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        """The keys used most, last, fastest (over the last hour) or held most. Needs `usage_keep`."""
        return self._run(lambda of: of.top(count, by=by, ascending=ascending))

    def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        """How many sends are in each step of the span that ends now, of a key or of all. Needs `usage_keep`."""
        return self._run(lambda of: of.series(key, last=last, step=step))

    def _wait_for(self, permit: Permit) -> None:
        try:
            self._sleep(permit.wait_us / 1e6)
        except BaseException:
            with suppress(LimiterUnreachableError):
                self.refund(permit)
            raise

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


def is_async(function: object) -> bool:
    """Whether a call of the function must be awaited. A class is never async, even if its objects are."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def permit_of(key: str, answer: Permit | Hold) -> Permit:
    """Return the permit, or raise LimitExceeded for a Hold."""
    if isinstance(answer, Hold):
        raise LimitExceeded(key, answer, answer.policy or Policy())
    return answer


def all_or_none(answers: Sequence[Permit | Hold]) -> list[Permit] | Hold:
    holds = [answer for answer in answers if isinstance(answer, Hold)]
    if holds:
        return max(holds, key=lambda hold: hold.time_left_us)
    return [answer for answer in answers if isinstance(answer, Permit)]


async def waited(asking: Coroutine[Any, Any, Permit | Hold], refund: Refund) -> Permit | Hold:
    """Ask, and sleep until the permit counts. If the task is cancelled meanwhile, the permit is given back."""
    # Redis may have run a cancelled call. So the call goes on in a task of its own, and its permit is given back.
    asked = asyncio.create_task(asking)

    async def give_back() -> None:
        with suppress(Exception):  # no caller is left to get the error
            if permit := await asked:
                await refund(permit)

    try:
        answer = await asyncio.shield(asked)
        await _sleep(answer.wait_us / 1e6 if answer else 0)
    except asyncio.CancelledError:
        given_back = asyncio.create_task(give_back())
        _GIVEN_BACK.add(given_back)
        given_back.add_done_callback(_GIVEN_BACK.discard)
        await asyncio.wait([given_back], timeout=BACK_S)
        raise
    return answer


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)
