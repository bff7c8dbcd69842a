"""The partitions that a worker serves: all of a fleet or some, each by an engine of its own in the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from notifier.queue.backlogs import SWEPT_AT_ONCE, sweep
from notifier.queue.health import LOOKED, SUSPENDED
from notifier.rules.policies import Policies
from notifier.scripts.keys import redis_key, rq_key, under
from notifier.scripts.loader import run_async
from notifier.store.partitions import Partition
from workers.configuration.reload import Retimed
from workers.loop.engine import Engine
from workers.loop.parts import Parts

SWEEPS: Final = 10  # in a row, where one finds as much as it may end; each blocks Redis for about a millisecond
WHOLE: Final = 5  # of so many turns one brings RQ's upkeep; the others tell no more than that the worker looks
TURNS: Final = 16  # seconds in which each partition has its turn, where there are many
ENDED: Final = ("failed", "finished")  # RQ's registries, whose entries lapse


class Served:
    """One partition in the hands of this process: its engine, and what the engine is made of."""

    def __init__(self, at: Partition, parts: Parts, policies: Policies, version: str) -> None:
        """To be made `under` its prefixes."""
        self.at, self.parts = at, parts
        self.engine = Engine(parts, policies, version)
        self._key = rq_key("worker", parts.name)
        self.retimed: Retimed | None = None  # told of the last walk, which a Redis that crashed may have lost
        self.tending: asyncio.Task[None] | None = None
        self._turn = 0  # of those in which it was registered
        self._swept = sweep(parts.lanes, parts.tuning.keep)

    async def take_up(self, policies: Policies, version: str) -> None:
        """See `Engine.take_up`."""
        with under(self.at.prefixes):
            await self.engine.take_up(policies, version)

    async def probe(self, platform: str) -> None:
        """See `Circuits.probe`."""
        with under(self.at.prefixes):
            await self.parts.circuits.probe(platform)

    async def sweep(self) -> None:
        """See `backlogs.sweep`."""
        with under(self.at.prefixes):
            for _ in range(SWEEPS):
                ended, walked = await run_async(self.parts.redis, self._swept)
                if self.retimed is not None:
                    self.retimed.walked = walked
                if ended < SWEPT_AT_ONCE:
                    return

    async def register(self, told: dict[Any, Any], ttl_s: int) -> None:
        """Tell those who look at this partition of the worker, as RQ does in the first one, and do RQ's upkeep."""
        looked_us = self.engine.looked_us
        if looked_us is None:
            return
        is_whole = self._turn % WHOLE == 0
        with under(self.at.prefixes):
            async with self.parts.redis.pipeline(transaction=False) as pipe:
                pipe.hset(self._key, mapping={**told, SUSPENDED: self.engine.suspended_us, LOOKED: looked_us})
                pipe.expire(self._key, ttl_s)
                pipe.set(redis_key("looked"), looked_us)
                if is_whole:
                    self._keep_up(pipe, looked_us // 1_000_000)
                replies = await pipe.execute()
            others = replies[-1] - {self._key.encode()} if is_whole else ()
            for key in others:  # whom a kill has left behind
                if not await self.parts.redis.exists(key):
                    await self.parts.redis.srem(rq_key("workers"), key)
        self._turn += 1

    def _keep_up(self, pipe: Any, now_s: int) -> None:
        """RQ's upkeep, and last the workers that it knows."""
        for lane in self.parts.lanes:
            pipe.sadd(rq_key("workers", lane), self._key)
            for registry in ENDED:
                pipe.zremrangebyscore(rq_key(registry, lane), 0, now_s)
        pipe.sadd(rq_key("workers"), self._key)
        pipe.smembers(rq_key("workers"))

    async def tend(self, told: dict[Any, Any] | None, ttl_s: int) -> None:
        """Sweep, and register where something is told; a partition that is away is for the next time."""
        with contextlib.suppress(RedisError):
            await self.sweep()
            if told is not None:
                await self.register(told, ttl_s)

    async def leave(self, *, registered: bool) -> None:
        """Give up the lead, and the entry of `register`; where Redis is away, they lapse by themselves."""
        if self.tending is not None:
            self.tending.cancel()
            await asyncio.gather(self.tending, return_exceptions=True)
        await self.parts.idle.close()
        if not self.engine.is_away:
            with under(self.at.prefixes), contextlib.suppress(RedisError):
                if registered:
                    await self._unregister()
                await run_async(self.parts.redis, self.parts.idle.hand_over())
        await self.parts.redis.aclose()

    async def _unregister(self) -> None:
        async with self.parts.redis.pipeline(transaction=False) as pipe:
            for key in (rq_key("workers"), *(rq_key("workers", lane) for lane in self.parts.lanes)):
                pipe.srem(key, self._key)
            pipe.delete(self._key)
            await pipe.execute()


async def run_all(served: Sequence[Served], **bounds: Any) -> None:
    """Run all engines until they have ended; where one fails, the others end in order, and its error is raised."""
    tasks = []
    for each in served:
        with under(each.at.prefixes):
            tasks.append(asyncio.create_task(each.engine.run(**bounds)))
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if pending:
        for each in served:
            each.engine.stop()
        await asyncio.wait(pending)
    for task in tasks:
        task.result()
