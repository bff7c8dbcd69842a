"""The partitions that a worker serves: all of a fleet or some, each by an engine of its own in the same event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from notifier.errors import NotifierError, RedisUnusableError
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

SWEEPS: Final = 10  # in a row, while each ends as many jobs as it may; each blocks Redis for about a millisecond
RETIMED_AT_ONCE: Final = 500
TURN_MS: Final = 1_000  # the least time between two walks over all wake-ups, by different workers
WHOLE: Final = 5  # one turn in this many does RQ's upkeep; the others only report that the worker looks for work
TURNS: Final = 16  # the seconds in which each of several partitions has its turn
ENDED: Final = ("failed", "finished")  # RQ's registries, whose entries lapse


class Served:
    """One partition that this process serves: its engine, and the engine's parts."""

    def __init__(self, at: Partition, parts: Parts, policies: Policies, version: str) -> None:
        """Call it `under` the partition's prefixes."""
        self.at, self.parts = at, parts
        self.engine = Engine(parts, policies, version)
        self._key = rq_key("worker", parts.name)
        self._version = version  # of the rules; '' if they never change
        self._taken, self._told = int(bool(version)), 0  # rules that were taken up, and how many of these Redis knows
        self._since = 0  # when rules were taken up last, by Redis's clock
        self._is_due = False  # whether a walk over the wake-ups is due, as of the last sweep
        self.tending: asyncio.Task[None] | None = None
        self._turn = 0  # counts the calls of `register`
        self.refused: NotifierError | None = None  # why this worker must stop: the keys in Redis are not of its kind
        self._swept = sweep(parts.lanes, parts.tuning.keep, lease_us=parts.tuning.lease_us)

    async def take_up(self, policies: Policies, version: str) -> None:
        """See `Engine.take_up`. The next sweep has the wake-ups that other rules set checked again."""
        with under(self.at.prefixes):
            await self.engine.take_up(policies, version)
        self._version, self._taken = version, self._taken + 1

    @property
    def is_behind(self) -> bool:
        """Whether Redis does not know yet that rules were taken up, or a walk over the wake-ups is due."""
        return self._told < self._taken or self._is_due

    async def probe(self, platform: str) -> None:
        with under(self.at.prefixes):
            await self.parts.circuits.probe(platform)

    async def sweep(self) -> None:
        """See `backlogs.sweep`. If rules were taken up, check all wake-ups again: some may be too late now.

        A worker that still followed the old rules may have set some meanwhile, so each worker ensures that a walk over
        all began after its own change. It does so again if a crash took Redis back to the time before the change.
        """
        redis = self.parts.redis
        with under(self.at.prefixes):
            for _ in range(SWEEPS):
                ended, since, walked = await run_async(redis, self._swept)
                if ended < SWEPT_AT_ONCE:
                    break
            if self._told < self._taken or since < self._since:
                # A change back to earlier rules counts, too: wake-ups set meanwhile follow others.
                taken, changed = self._taken, self._told > 0 or self._taken > 1
                since, walked = await run_async(redis, leaders.follow(self._version, changed=changed))
                self._told, self._since = taken, since
            self._is_due = walked < since
            if self._is_due:
                await self._retime(since)

    async def _retime(self, since: int) -> None:
        """Walk over all wake-ups, once for all workers that have taken up rules before."""
        redis = self.parts.redis
        if await run_async(redis, leaders.take_turn(self.parts.name, lapse_ms=TURN_MS)):
            return  # another worker walks; the next sweep shows whether it has finished
        for lane in dict.fromkeys((*LANES, *self.parts.lanes)):  # other workers that changed may serve other lanes
            cursor = "0"
            while (cursor := await run_async(redis, retime(lane, cursor, max_users=RETIMED_AT_ONCE))) != "0":
                pass
        await run_async(redis, write("HSET", redis_key("leaders"), "#walked", since))
        self._is_due = False

    def claim(self) -> None:
        """Claim the partition, which came back empty; see `Partition.claim` and `refused`. Blocks."""
        try:
            with under(self.at.prefixes):
                self.at.claim()
        except NotifierError as error:
            if isinstance(error.__cause__, RedisError):  # it cannot be asked now: the next beat tries again
                raise
            self.refused = error

    async def register(self, fields: dict[Any, Any], ttl_s: int) -> None:
        """Register the worker in this partition, as RQ does in the first one, and do RQ's upkeep."""
        looked_us = self.engine.looked_us
        if looked_us is None:
            return
        is_whole = self._turn % WHOLE == 0
        with under(self.at.prefixes):
            async with self.parts.redis.pipeline(transaction=False) as pipe:
                pipe.hset(self._key, mapping={**fields, SUSPENDED: self.engine.suspended_us, LOOKED: looked_us})
                pipe.expire(self._key, ttl_s)
                pipe.set(redis_key("looked"), looked_us)
                if is_whole:
                    self._keep_up(pipe, looked_us // 1_000_000)
                replies = await pipe.execute()
            if replies[0] or not self.at.is_checked:  # HSET made the fields: Redis has lost them, or never had them
                await asyncio.to_thread(self.claim)
            others = replies[-1] - {self._key.encode()} if is_whole else ()
            for key in others:  # a killed worker may have left its name here
                if not await self.parts.redis.exists(key):
                    await self.parts.redis.srem(rq_key("workers"), key)
        self._turn += 1

    def _keep_up(self, pipe: Any, now_s: int) -> None:
        """Add RQ's upkeep to the pipeline; the last reply names the workers that RQ knows."""
        for lane in self.parts.lanes:
            pipe.sadd(rq_key("workers", lane), self._key)
            for registry in ENDED:
                pipe.zremrangebyscore(rq_key(registry, lane), 0, now_s)
        pipe.sadd(rq_key("workers"), self._key)
        pipe.smembers(rq_key("workers"))

    async def tend(self, fields: dict[Any, Any] | None, ttl_s: int) -> None:
        """Sweep, and register with these fields, if any. If the partition is away, the next call does it."""
        with contextlib.suppress(RedisError, RedisUnusableError):
            await self.sweep()
            if fields is not None:
                await self.register(fields, ttl_s)

    async def leave(self, *, registered: bool) -> None:
        """Give up the lead, and remove the entry of `register`; if Redis is away, both lapse by themselves."""
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
    """Run all engines to their end. If one fails, stop the others in order, and raise its error."""
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
