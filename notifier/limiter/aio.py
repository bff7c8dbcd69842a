"""AsyncKeyLimiter and AsyncMemoryLimiter: the methods of `KeyLimiter`, awaited. This module imports no redis."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.base import Asking, CostOf, KeyOf, OnHold, RatesOf, all_or_none, permit_of, waited
from notifier.limiter.memory import InMemory
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Rates
from notifier.limiter.requests import Asked, By, Mode, Request, Timeout

P = ParamSpec("P")
T = TypeVar("T")
Decorated = Callable[P, Coroutine[Any, Any, T]]


class AsyncKeyLimiter(Asking, ABC):
    """Base of `AsyncLimiter` and `AsyncMemoryLimiter`: its methods are those of `Limiter`, awaited."""

    @abstractmethod
    async def _answer(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        """Answer each request."""

    @abstractmethod
    async def _run(self, call: Callable[[Any], T]) -> T:
        """Apply `call` to the keys in memory; or to `RedisRequests`, and send the call of Redis that it builds."""

    async def _look(self) -> None:
        """Follow the configuration from the first call on."""

    async def _ask(self, asked: Iterable[Asked], mode: Mode, ahead: Timeout = 0) -> list[Permit | Hold]:
        await self._look()
        return await self._answer([self._requests.request(*each) for each in asked], mode, ahead)

    async def aclose(self) -> None:
        """Close the connections, if there are any; `async with` does it too."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def acquire(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        return (await self._ask([(key, rates, cost)], "take"))[0]

    async def acquire_many(self, asked: Iterable[Asked]) -> list[Permit | Hold]:
        return await self._ask(asked, "take")

    async def acquire_all(self, asked: Iterable[Asked]) -> list[Permit] | Hold:
        return all_or_none(await self._ask_every(asked))

    async def _ask_every(self, asked: Iterable[Asked]) -> list[Permit | Hold]:
        await self._look()
        return await self._answer(self._requests.every(asked), "every", 0)

    async def peek(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        return (await self._ask([(key, rates, cost)], "look"))[0]

    async def check(self, key: str, rates: Rates, *, cost: int = 1) -> Permit:
        return permit_of(key, await self.acquire(key, rates, cost=cost))

    async def add(self, key: str, cost: int = 1, *, keep: str | timedelta = "1d") -> Permit:
        return permit_of(key, (await self._answer([self._requests.added(key, cost, keep)], "add", 0))[0])

    async def wait(self, key: str, rates: Rates, *, cost: int = 1, timeout: Timeout = None) -> Permit:
        """See `Limiter.wait`. If the task is cancelled while it waits, its permit is given back."""
        return permit_of(key, await waited(self.reserve(key, rates, cost=cost, within=timeout), self.refund))

    async def reserve(self, key: str, rates: Rates, *, cost: int = 1, within: Timeout = None) -> Permit | Hold:
        return (await self._ask([(key, rates, cost)], "take", within))[0]

    @asynccontextmanager
    async def slot(self, key: str, rates: Rates, *, cost: int = 1, timeout: Timeout = None) -> AsyncIterator[Permit]:
        """`async with limiter.slot("key", "10/s"):` waits, and then runs the block."""
        yield await self.wait(key, rates, cost=cost, timeout=timeout)

    @overload
    def limit(
        self,
        rates: RatesOf,
        *,
        key: KeyOf,
        cost: CostOf = 1,
        on_hold: Literal["raise", "wait"] = "raise",
        timeout: Timeout = None,
    ) -> Callable[[Decorated[P, T]], Decorated[P, T]]: ...

    @overload
    def limit(
        self, rates: RatesOf, *, key: KeyOf, cost: CostOf = 1, on_hold: Literal["return"], timeout: Timeout = None
    ) -> Callable[[Decorated[P, T]], Decorated[P, T | Hold]]: ...

    def limit(
        self, rates: RatesOf, *, key: KeyOf, cost: CostOf = 1, on_hold: OnHold = "raise", timeout: Timeout = None
    ) -> Any:
        """Limit an async function; see `Limiter.limit`."""
        asked = self._decorating(rates, key, cost, on_hold)

        def decorate(function: Decorated[P, T]) -> Decorated[P, T | Hold]:
            if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
                raise TypeError("this limiter limits async functions alone; a Limiter limits plain ones too")

            @functools.wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> T | Hold:
                of, by, many = asked(*args, **kwargs)
                if on_hold == "wait":
                    await self.wait(of, by, cost=many, timeout=timeout)
                elif isinstance(answer := await self.acquire(of, by, cost=many), Hold):
                    if on_hold == "return":
                        return answer
                    permit_of(of, answer)
                return await function(*args, **kwargs)

            return limited

        return decorate

    async def penalize(self, key: str, rates: Rates, *, cost: int = 1) -> Permit:
        return permit_of(key, (await self._ask([(key, rates, cost)], "add"))[0])

    async def refund(self, permit: Permit) -> bool:
        return await self.adjust(permit, 0)

    async def adjust(self, permit: Permit, used: int) -> bool:
        return bool(permit.id) and await self._run(lambda of: of.adjust(permit, used))

    async def reward(self, key: str, cost: int = 1) -> int:
        return await self._run(lambda of: of.reward(key, cost))

    async def block(self, key: str, for_: str | timedelta) -> None:
        await self._run(lambda of: of.block(key, for_))

    async def reset(self, key: str) -> int:
        return await self._run(lambda of: of.reset(key))

    async def count(self, key: str, *, last: str | timedelta) -> int:
        return await self._run(lambda of: of.count(key, last=last))

    async def usage(self, key: str) -> Usage:
        return await self._run(lambda of: of.usage(key))

    async def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        return await self._run(lambda of: of.top(count, by=by, ascending=ascending))

    async def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        return await self._run(lambda of: of.series(key, last=last, step=step))


class AsyncMemoryLimiter(InMemory, AsyncKeyLimiter):
    """`MemoryLimiter` for asyncio: one process, without Redis. A task that waits does not block the event loop."""

    async def _answer(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        return self._keys.ask(requests, mode, ahead)

    async def _run(self, call: Callable[[Any], T]) -> T:
        return call(self._keys)
