"""AsyncLimiter: `Limiter` over redis.asyncio. It builds the same calls; only the waiting differs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.exceptions import RedisError

from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.calls import UNSETTLED
from notifier.limiter.outage import unreachable
from notifier.limiter.plans import StaleError
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.requests import Mode, Request, Timeout
from notifier.limiter.sync import MAX_AT_ONCE, InRedis, follow, within
from notifier.scripts.loader import run_async
from notifier.scripts.packed import send_async
from notifier.scripts.turns import in_turn_async

if TYPE_CHECKING:
    from notifier.store.live_limits import LiveLimits

T = TypeVar("T")


class AsyncLimiter(InRedis, AsyncKeyLimiter):
    """A limiter of its own namespace in Redis, for asyncio; every method is that of `Limiter`, awaited."""

    _live: LiveLimits | None = None

    @classmethod
    def from_url(cls, url: str, *, namespace: str, timeout: Timeout = None, **options: Any) -> Self:
        """See `Limiter.from_url`."""
        client = redis.asyncio.Redis.from_url(url, protocol=2, **within(timeout, Retry))
        return cls(client, namespace=namespace, **options)

    @classmethod
    def from_config(cls, path: str | Path | None = None, *, namespace: str, **options: Any) -> Self:
        """See `Limiter.from_config`. It looks for changes in a thread, so that the event loop goes on."""
        live = follow(path)
        from notifier.store.aio import connect_async  # noqa: PLC0415 - as in `follow`

        made = cls(connect_async(live.settings), namespace=namespace, limits=live.known, **options)
        made._live = live
        return made

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self.redis.aclose()

    async def _answer(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        outage = self._outage
        if not outage.lets_through():
            return outage.answers(requests, mode, ahead)
        answers: list[Permit | Hold] = []
        try:
            while len(answers) < len(requests):
                part = requests if mode == "every" else requests[len(answers) : len(answers) + MAX_AT_ONCE]
                try:
                    answers = [*answers, *await send_async(self.redis, self._requests.ask(part, mode, ahead))]
                except StaleError as stale:
                    answers += stale.answers
                    requests = [*requests[: len(answers)], *self._requests.renewed(requests[len(answers) :], stale)]
        except (RedisError, OSError) as error:
            return outage.answers(requests, mode, ahead, error)
        outage.breaker.worked()
        return answers

    async def adjust(self, permit: Permit, used: int) -> bool:
        """See `Limiter.adjust`."""
        in_memory = self._outage.own(permit)
        return self._outage.memory.adjust(in_memory, used) if in_memory else await super().adjust(permit, used)

    async def _run(self, call: Callable[[Any], T]) -> T:
        asked: Any = call(self._requests)
        try:
            while (reply := await in_turn_async(self.redis, lambda: run_async(self.redis, asked))) is UNSETTLED:
                pass
        except (RedisError, OSError) as error:
            raise unreachable(error) from error
        answer: T = reply
        return answer

    async def _look(self) -> None:
        if self._live is not None and self._live.is_due:
            await asyncio.to_thread(self._live.look)
