"""AsyncLimiter: `Limiter` over redis.asyncio. It builds the same calls; only the waiting differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import redis.asyncio
from redis.asyncio.retry import Retry

from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.calls import UNSETTLED
from notifier.limiter.outage import unreachable
from notifier.limiter.plans import StaleError
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.requests import Mode, Request, Timeout
from notifier.limiter.sync import (
    AWAY,
    MAX_AT_ONCE,
    OF_CLUSTER,
    InRedis,
    Options,
    OwnOptions,
    follow,
    is_cluster,
    nodes_of,
    within,
)
from notifier.scripts.pooled import send_async

T = TypeVar("T")


class AsyncLimiter(InRedis, AsyncKeyLimiter):
    """A limiter of its own namespace in Redis, for asyncio; every method is that of `Limiter`, awaited."""

    _module, _others, _retry = "redis.asyncio", (redis.Redis, redis.RedisCluster), Retry

    @classmethod
    def from_url(cls, url: str, *, namespace: str, timeout: Timeout = None, **options: Unpack[OwnOptions]) -> Self:
        """See `Limiter.from_url`."""
        if is_cluster(url):
            nodes, of_url = nodes_of(url)
            client = _cluster(nodes, OF_CLUSTER | within(timeout, Retry, tries=1) | of_url)
        else:
            client = redis.asyncio.Redis.from_url(url, protocol=2, **within(timeout, Retry))
        return cls(client, namespace=namespace, **options)

    @classmethod
    def from_config(cls, path: str | Path | None = None, *, namespace: str, **options: Unpack[Options]) -> Self:
        """See `Limiter.from_config`."""
        live = follow(path)
        from notifier.store.aio import connect_async  # noqa: PLC0415 - as in `follow`

        return cls._following(live, connect_async, _cluster, namespace=namespace, limits=lambda: live.known, **options)

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self.redis.aclose()
        if self._live is not None:
            self._live.close()

    async def _answer(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        outage = self._outage
        if not outage.lets_through():
            return outage.answers(requests, mode, ahead)
        answers: list[Permit | Hold] = []
        try:
            while len(answers) < len(requests):
                part = requests if mode == "every" else self._requests.first_of(requests[len(answers) :], MAX_AT_ONCE)
                try:
                    answers = [*answers, *await send_async(self.redis, self._requests.ask(part, mode, ahead))]
                except StaleError as stale:
                    answers += stale.answers
                    requests = [*requests[: len(answers)], *self._requests.renewed(requests[len(answers) :], stale)]
        except AWAY as error:
            return [*answers, *outage.answers(requests[len(answers) :], mode, ahead, error)]
        outage.breaker.worked()
        return answers

    async def adjust(self, permit: Permit, used: int) -> bool:
        """See `Limiter.adjust`."""
        in_memory = self._outage.own(permit)
        return self._outage.memory.adjust(in_memory, used) if in_memory else await super().adjust(permit, used)

    async def _run(self, call: Callable[[Any], T]) -> T:
        asked: Any = call(self._requests)
        try:
            while (reply := await send_async(self.redis, asked)) is UNSETTLED:
                pass
        except AWAY as error:
            raise unreachable(error) from error
        answer: T = reply
        return answer

    async def _look(self) -> None:
        if self._live is not None and not self._live.has_begun:
            await self._live.begin_async()


def _cluster(nodes: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> Any:
    made: Callable[..., Any] = redis.asyncio.cluster.ClusterNode
    return redis.asyncio.RedisCluster(startup_nodes=[made(*node) for node in nodes], **options)
