"""AsyncLimiter: `Limiter` over redis.asyncio. It builds the same calls; only the waiting differs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Rates
from notifier.limiter.requests import Asked, By, Mode, Request
from notifier.limiter.sync import InRedis, OnHold, check_on_hold, permit_of, unanswered, unreachable
from notifier.scripts.loader import Call, run_async
from notifier.scripts.packed import send_async
from notifier.store.aio import connect_async

if TYPE_CHECKING:
    from notifier.limiter.live import LiveLimits

P = ParamSpec("P")
T = TypeVar("T")


class AsyncLimiter(InRedis):
    """A limiter of its own namespace in Redis, for asyncio; every method is that of `Limiter`, awaited."""

    _live: LiveLimits | None = None

    @classmethod
    def from_url(cls, url: str, *, namespace: str, **options: Any) -> Self:
        """A limiter on the Redis of a URL. options: as of the constructor."""
        # Redis may have closed a connection that was idle: that is no reason to refuse.
        again = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
        return cls(redis.asyncio.Redis.from_url(url, protocol=2, retry=again), namespace=namespace, **options)

    @classmethod
    def from_config(cls, path: str | Path | None = None, *, namespace: str, **options: Any) -> Self:
        """See `Limiter.from_config`. It looks for changes in a thread, so that the event loop goes on."""
        from notifier.limiter.live import LiveLimits  # noqa: PLC0415 - YAML and pydantic are for who has a configuration

        live = LiveLimits(path)
        made = cls(connect_async(live.settings), namespace=namespace, limits=live.known, **options)
        made._live = live
        return made

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self.redis.aclose()

    async def acquire(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        """See `Limiter.acquire`."""
        return (await self._ask([(key, rates, cost)], "take", 0))[0]

    async def acquire_many(self, asked: Iterable[Asked]) -> list[Permit | Hold]:
        """See `Limiter.acquire_many`."""
        return await self._ask(asked, "take", 0)

    async def peek(self, key: str, rates: Rates, *, cost: int = 1) -> Permit | Hold:
        """See `Limiter.peek`."""
        return (await self._ask([(key, rates, cost)], "look", 0))[0]

    async def check(self, key: str, rates: Rates, *, cost: int = 1) -> Permit:
        """See `Limiter.check`."""
        return permit_of(key, await self.acquire(key, rates, cost=cost))

    async def add(self, key: str, cost: int = 1, *, keep: str | timedelta = "1d") -> Permit:
        """See `Limiter.add`."""
        (permit,) = await self._send([self._requests.added(key, cost, keep)], "add", 0)
        assert isinstance(permit, Permit)
        return permit

    async def wait(
        self,
        key: str,
        rates: Rates,
        *,
        cost: int = 1,
        timeout: str | timedelta | float | None = None,  # noqa: ASYNC109
    ) -> Permit:
        """See `Limiter.wait`. A task that is cancelled meanwhile gives its permit back."""
        answers = await self._ask([(key, rates, cost)], "take", timeout)
        permit = permit_of(key, answers[0])
        try:
            await _sleep(permit.wait_us / 1e6)
        except asyncio.CancelledError:
            await asyncio.shield(self.refund(permit))
            raise
        return permit

    @asynccontextmanager
    async def slot(
        self,
        key: str,
        rates: Rates,
        *,
        cost: int = 1,
        timeout: str | timedelta | float | None = None,  # noqa: ASYNC109
    ) -> AsyncIterator[Permit]:
        """`async with limiter.slot("key", "10/s"):` waits, and then runs the block."""
        yield await self.wait(key, rates, cost=cost, timeout=timeout)

    def limit(
        self,
        rates: Rates,
        *,
        key: str | Callable[..., str],
        cost: int = 1,
        on_hold: OnHold = "raise",
        timeout: str | timedelta | float | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T | Hold]]]:
        """Limit an async function; see `Limiter.limit`."""
        check_on_hold(on_hold)

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T | Hold]]:
            @functools.wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> T | Hold:
                of = key(*args, **kwargs) if callable(key) else key
                answer: Permit | Hold
                if on_hold == "wait":
                    answer = await self.wait(of, rates, cost=cost, timeout=timeout)
                elif on_hold == "raise":
                    answer = await self.check(of, rates, cost=cost)
                else:
                    answer = await self.acquire(of, rates, cost=cost)
                return answer if isinstance(answer, Hold) else await function(*args, **kwargs)

            return limited

        return decorate

    async def refund(self, permit: Permit) -> bool:
        """See `Limiter.refund`."""
        return bool(permit.id) and await self._run(self._requests.refund(permit))

    async def reset(self, key: str) -> int:
        """See `Limiter.reset`."""
        return await self._run(self._requests.reset(key))

    async def count(self, key: str, *, last: str | timedelta) -> int:
        """See `Limiter.count`."""
        return await self._run(self._requests.count(key, last))

    async def usage(self, key: str) -> Usage:
        """See `Limiter.usage`."""
        return await self._run(self._requests.usage(key))

    async def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        """See `Limiter.top`."""
        return await self._run(self._requests.top(count, by, ascending=ascending))

    async def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        """See `Limiter.series`."""
        return await self._run(self._requests.series(key, last, step))

    async def _ask(
        self, asked: Iterable[Asked], mode: Mode, ahead: str | timedelta | float | None
    ) -> list[Permit | Hold]:
        if self._live is not None and self._live.is_due:
            await asyncio.to_thread(self._live.look)
        return await self._send([self._requests.request(*each) for each in asked], mode, ahead)

    async def _send(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None
    ) -> list[Permit | Hold]:
        try:
            call = self._requests.ask(requests, mode, ahead)
            answers = await send_async(self.redis, call)
            if len(answers) < len(requests):
                rest = self._requests.ask_any(requests[len(answers) :], mode, ahead)
                answers = answers + await send_async(self.redis, rest)
        except (RedisError, OSError) as error:
            return unanswered(requests, self.on_error, error)
        return answers

    async def _run(self, call: Call[T]) -> T:
        try:
            return await run_async(self.redis, call)
        except (RedisError, OSError) as error:
            raise unreachable(error) from error


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)
