"""AsyncLimiter: `Limiter` over redis.asyncio. It builds the same calls; only the waiting differs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry

from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.protocol import Permit
from notifier.limiter.sync import InRedis
from notifier.scripts.connection_wait import OfOneLoop, in_turn_async
from notifier.scripts.loader import Call, run_async

T = TypeVar("T")


def _cluster(nodes: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> Any:
    made: Callable[..., Any] = redis.asyncio.cluster.ClusterNode
    return redis.asyncio.RedisCluster(startup_nodes=[made(*node) for node in nodes], **options)


class AsyncLimiter(OfOneLoop, InRedis, AsyncKeyLimiter):
    """A limiter in Redis with its own namespace, for asyncio. Its methods are those of `Limiter`, awaited."""

    _module, _client, _cluster, _retry = "redis.asyncio", redis.asyncio.Redis, staticmethod(_cluster), Retry
    _others = redis.Redis, redis.RedisCluster
    _is_awaited = True

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        self._is_used_here()
        await self.redis.aclose()
        if self._live is not None:
            self._live.close()
        self._leave(self.redis)

    async def adjust(self, permit: Permit, used: int) -> bool:
        in_memory = self._outage.own(permit)
        return self._outage.memory.adjust(in_memory, used) if in_memory else await super().adjust(permit, used)

    def _send(self, client: Any, call: Call[T]) -> Coroutine[Any, Any, T]:
        self._is_used_here()
        return in_turn_async(client, partial(run_async, client, call))

    async def _run(self, call: Callable[[Any], T]) -> T:
        return await self._called(call)

    async def _look(self) -> None:
        if self._live is not None and not self._live.has_begun:
            await self._live.begin_async()
