"""The watch: of all idle workers one waits for what comes next; the others wait to be called.

The worker on watch listens on the lanes for a push, on the nudge for something that fell due earlier than it
knew, and on its own timer for the next gate: Redis's timeouts are too coarse for that. So a job that arrives
among two dozen idle workers wakes one of them, and so does a gate. Who has more to do than it can hold calls
for relief: one more worker wakes, looks, and takes the watch. A watch whose keeper died lapses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from notifier.limiter import lines
from notifier.limiter.scripts import run_async

LAPSE_MS: Final = 2_500
LONGEST_S: Final = 1.0  # between two looks of the worker on watch: bounds what a lost nudge can cost
LISTEN_S: Final = 1.0  # of one blocking call; ends of themselves those that nobody waits for any more


class Watch:
    """One worker's part in the watch."""

    def __init__(self, blocking: Any, redis: Any, worker: str, lanes: Sequence[str]) -> None:
        """blocking: an asyncio client for calls that block up to LISTEN_S; redis: the one for all else."""
        self._redis = redis
        self._blocking = blocking
        self._worker = worker
        self._queues = [f"rq:queue:{lane}" for lane in lanes]
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._waits = False
        self.wake = asyncio.Event()
        self.kept = False

    async def wait(self, due_in_s: float | None) -> None:
        """Wait until there may be something to do; due_in_s: seconds until the next thing known to fall due.

        Returns as soon as `wake` is set, which is then cleared; and at once after taking the watch, because what
        was known before may be old: from the next look on, whoever makes something due earlier nudges.
        """
        if not self.wake.is_set():
            kept_before = self.kept
            self.kept = await run_async(self._redis, lines.watch(self._worker, lapse_ms=LAPSE_MS))
            if self.kept and not kept_before:
                return
            if self.kept:
                for queue in self._queues:
                    self._listen(queue, self._pushed)
                self._listen("notifier:nudge", self._called)
                timeout = LONGEST_S if due_in_s is None else min(LONGEST_S, due_in_s)
            else:
                self._listen("notifier:relief", self._called)
                timeout = LISTEN_S
            self._waits = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), max(0.0, timeout))
            self._waits = False
        self.wake.clear()

    async def call(self) -> None:
        """Call for relief: another idle worker looks for work and takes the watch."""
        self.kept = False
        await run_async(self._redis, lines.relieve(self._worker))

    async def close(self) -> None:
        """Leave the watch to another."""
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)
        with contextlib.suppress(RedisError):
            await self.call()
        await self._blocking.aclose()

    def _listen(self, key: str, heard: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        task = self._listening.get(key)
        if task is None or task.done():
            self._listening[key] = asyncio.create_task(heard(key))

    async def _pushed(self, queue: str) -> None:
        # From the head to the head: the list stays as it is, and this returns as soon as it is not empty.
        with contextlib.suppress(RedisError, OSError):
            await self._heard(lambda: self._blocking.blmove(queue, queue, LISTEN_S, "LEFT", "LEFT"))

    async def _called(self, key: str) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._heard(lambda: self._blocking.blpop([key], timeout=LISTEN_S))

    async def _heard(self, listen: Callable[[], Awaitable[object]]) -> None:
        # A call that ended in the middle of a wait is made again, or nobody would listen for the rest of it.
        while not await listen():
            if not self._waits:
                return
        self.wake.set()
