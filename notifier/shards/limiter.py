"""The limiter over shards: each user's is that of the shard where the user lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from redis import Redis

from notifier.errors import LimiterUnreachableError, RedisUnusableError
from notifier.limiter.aio_users import AsyncUserLimiter
from notifier.limiter.redis import RedisLimiter
from notifier.scripts.loader import Call
from notifier.scripts.ownership import fenced
from notifier.shards.exchanges import at_home
from notifier.shards.map import Map
from notifier.store.aio import Calls
from notifier.store.exchange import Exchange, Once, exchange, exchange_async

T = TypeVar("T")


class ShardedLimiter(RedisLimiter):
    """`RedisLimiter` over shards."""

    def __init__(self, of: Map, clients: Mapping[str, Redis]) -> None:
        super().__init__(None)
        self._map = of
        self._clients = clients

    def _ask(self, user: str, call: Call[T]) -> T:
        try:
            return exchange(self._clients, _at_home(self._map, user, call))
        except RedisUnusableError as error:
            raise LimiterUnreachableError(str(error)) from error


class AsyncShardedLimiter(AsyncUserLimiter):
    """The same for asyncio."""

    def __init__(self, of: Map, clients: Mapping[str, Any], *, timeout: float, calls: Calls) -> None:
        """clients: of asyncio, by shard. timeout, calls: see `AsyncUserLimiter`."""
        super().__init__(None, timeout=timeout, calls=calls)
        self._map = of
        self._clients = clients

    async def _ask(self, user: str, call: Call[T], within: float) -> T:
        try:
            return await exchange_async(self._clients, _at_home(self._map, user, call), within)
        except RedisUnusableError as error:
            raise LimiterUnreachableError(str(error)) from error


def _at_home(of: Map, user: str, call: Call[T]) -> Exchange[T]:
    """Ask once: a send that was counted, and of which no answer came, would be counted again."""

    def ask(_: str, fence: Mapping[str, bool]) -> Exchange[T]:
        answer: T = yield Once(fenced(call, fence))
        return answer

    return at_home(of, user, ask)
