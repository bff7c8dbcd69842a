"""An idle worker whose connection is lost while it listens looks again, however long it would have waited."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import eventually
from workers.loop.idle import IdleWorker

MANY = 8_000  # engines in a process: each by itself looks every 1,000 s


@pytest.mark.parametrize("lost", ["blmove", "blpop"])
def test_it_looks_when_nobody_listens_any_more(redis_server: EmbeddedRedis, redis: Redis, lost: str) -> None:
    """A node that dies closes what waits there for a push or a call: a look finds the one that took over."""

    def listening() -> list[dict[str, Any]]:
        return [client for client in redis.client_list() if client["cmd"] in {"blmove", "blpop"}]

    async def story() -> None:
        async with AsyncExitStack() as stack:
            clients = [AsyncRedis.from_url(redis_server.url, protocol=2) for _ in range(2)]
            stack.push_async_callback(clients[1].aclose)
            idle = IdleWorker(*clients, "w1", ["default"], MANY)
            stack.push_async_callback(idle.close)
            await idle.wait(None)  # takes the lead
            waiting = asyncio.create_task(idle.wait(None))
            await asyncio.to_thread(eventually, lambda: len(listening()) == 2, "it to listen")
            for client in listening():
                if client["cmd"] == lost:
                    redis.client_kill_filter(_id=client["id"])
            async with asyncio.timeout(60):
                await waiting
            assert idle.leads

    asyncio.run(story())


class Deaf(AsyncRedis):
    """A client that swallows the first cancelling of a call that blocks, as one that is being connected anew may."""

    async def blpop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            await super().blpop(*args, **kwargs)
        except asyncio.CancelledError:
            await super().blpop(*args, **kwargs)


def test_it_ends_though_a_client_is_deaf_to_the_first_cancelling(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """A worker that stops would wait for its calls that block, a minute each."""

    async def story() -> None:
        async with AsyncRedis.from_url(redis_server.url, protocol=2) as client:
            blocking = Deaf.from_url(redis_server.url, protocol=2, socket_timeout=None)
            idle = IdleWorker(blocking, client, "w1", ["default"], MANY)
            await idle.wait(None)  # takes the lead
            waiting = asyncio.create_task(idle.wait(None))
            await asyncio.to_thread(
                eventually, lambda: [c for c in redis.client_list() if c["cmd"] == "blpop"], "a call"
            )
            waiting.cancel()
            async with asyncio.timeout(30):
                await idle.close()

    asyncio.run(story())
