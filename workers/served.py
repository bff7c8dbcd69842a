"""The partitions that a worker serves: all of a fleet or some, each by an engine of its own in the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from notifier.queue import leaders
from notifier.queue.backlogs import SWEPT_AT_ONCE, retime, sweep
from notifier.queue.health import LOOKED, SUSPENDED
from notifier.queue.writes import write
from notifier.rules.category import LANES
from notifier.rules.policies import Policies
from notifier.scripts.keys import redis_key, rq_key, under
from notifier.scripts.loader import run_async
from notifier.store.partitions import Partition
from workers.loop.engine import Engine
from workers.loop.parts import Parts

SWEEPS: Final = 10  # in a row, where one finds as much as it may end; each blocks Redis for about a millisecond
RETIMED_AT_ONCE: Final = 500
TURN_MS: Final = 1_000  # the least time between two walks over all wake-ups, by whichever worker
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
        self._version = version  # of the rules; '' if they never change
        self._taken, self._told = int(bool(version)), 0  # how often rules were, and of how many of these Redis knows
        self._since = 0  # when it was told
        self._is_due = False  # whether a walk is, as far as the last sweep knows
        self.tending: asyncio.Task[None] | None = None
        self._turn = 0  # of those in which it was registered
        self._swept = sweep(parts.lanes, parts.tuning.keep)

    async def take_up(self, policies: Policies, version: str) -> None:
        """See `Engine.take_up`. With the next sweep, what waits by other rules is looked at again."""
        with under(self.at.prefixes):
            await self.engine.take_up(policies, version)
        self._version, self._taken = version, self._taken + 1

    @property
    def is_behind(self) -> bool:
        """Whether Redis has not been told yet of rules that were taken up, or a walk is due."""
        return self._told < self._taken or self._is_due

    async def probe(self, platform: str) -> None:
        with under(self.at.prefixes):
            await self.parts.circuits.probe(platform)

    async def sweep(self) -> None:
        """See `backlogs.sweep`. Where rules were taken up, have every wake-up looked at again: it may be too late.

        A worker that still followed the old ones may have set some, so each sees to it that a walk over all began after
        it had changed. So it does where Redis crashed, and came back with what it held before the change.
        """
        redis = self.parts.redis
        with under(self.at.prefixes):
            for _ in range(SWEEPS):
                ended, since, walked = await run_async(redis, self._swept)
                if ended < SWEPT_AT_ONCE:
                    break
            if self._told < self._taken or since < self._since:
                # Also back to those of before: what was set meanwhile is by others.
                taken, changed = self._taken, self._told > 0 or self._taken > 1
                since, walked = await run_async(redis, leaders.follow(self._version, changed=changed))
                self._told, self._since = taken, since
            self._is_due = walked < since
            if self._is_due:
                await self._retime(since)

    async def _retime(self, since: int) -> None:
        """Walk over all wake-ups, once for all workers that had taken up rules by then."""
        redis = self.parts.redis
        if not await run_async(redis, write("SET", redis_key("reload", "turn"), "1", "NX", "PX", TURN_MS)):
            return  # somebody walks; the next sweep tells whether that is over
        for lane in dict.fromkeys((*LANES, *self.parts.lanes)):  # others who changed may serve others
            cursor = "0"
            while (cursor := await run_async(redis, retime(lane, cursor, max_users=RETIMED_AT_ONCE))) != "0":
                pass
        await run_async(redis, write("HSET", redis_key("leaders"), "#walked", since))
        self._is_due = False

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
