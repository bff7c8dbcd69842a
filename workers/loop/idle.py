"""Idle workers: among those that serve the same lanes, the leader waits for the next job; the others wait for its call.

The leader listens on its lanes for a new job, and on a list for a wake-up earlier than the one it knows. It waits for
the next wake-up by a timer of its own, as Redis's timeouts are too coarse. So a job or a wake-up among two dozen idle
workers wakes one of them. A leader with more to do than it can hold hands over: one more worker wakes, pulls, and
leads. A leader that cannot get through to a provider hands over, too; a worker that cannot either lets this call pass,
once, so that it reaches one that can. The lead of a dead worker lapses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

from redis.exceptions import RedisError

from notifier.queue import leaders
from notifier.scripts.keys import rq_key
from notifier.scripts.loader import Call, run_async

LONGEST_S: Final = 1.0  # between two pulls of the leader: bounds the delay after a lost wake
LOOKS_PER_S: Final = 6  # pulls of all engines in a process: each of many idle partitions pulls less often
LAPSE: Final = 1.5  # times the longest wait: after that a dead worker has lost the lead
LISTEN_S: Final = 1.0  # of one blocking call, so that a call for which nobody waits any more ends by itself
LISTEN_MANY_S: Final = 60.0  # the same, in a process with several engines
YIELD_MS: Final = 1_000  # how long another worker has to take the lead: the one that heard the call may have died
AGAIN_S: Final = 0.5  # after a lost connection
PASS_ON_S: Final = 0.1  # the least time between two calls that a worker passes on
MOST_CALLS: Final = 1_000  # passed-on calls that a worker remembers
IN_VAIN: Final = b"in vain "  # prefixes the call of a worker that could not get through to a provider


def listen_s(engines: int) -> float:
    """How long a blocking call lasts in a process with this many engines."""
    return LISTEN_S if engines == 1 else LISTEN_MANY_S


class IdleWorker:
    """One worker while it is idle. leads: it is the leader. in_trouble: it cannot get through to a provider."""

    def __init__(self, blocking: Any, redis: Any, worker: str, lanes: Sequence[str], engines: int = 1) -> None:
        """blocking: an asyncio client for calls that block up to `listen_s`. engines: how many this process has."""
        self._redis, self._listen_s = redis, listen_s(engines)
        self._longest_s = max(LONGEST_S, engines / LOOKS_PER_S)
        self._lapse_ms = round(LAPSE * self._longest_s * 1_000)
        self._blocking = blocking
        self._worker = worker
        self._lanes = lanes
        self._wake_list = leaders.leader_key("wake", lanes)
        self._handover_list = leaders.leader_key("handover", lanes)
        self._queues = [rq_key("queue", lane) for lane in lanes]
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._waits = False
        self.called = b""  # the call that woke it last, until the next pull
        self._passed_on: deque[bytes] = deque(maxlen=MOST_CALLS)
        self._passes_on_at = -PASS_ON_S
        self.wake = asyncio.Event()
        self.leads = False
        self.in_trouble = False

    async def wait(self, due_in_s: float | None, *, yields: bool = False) -> bool:
        """Wait until there may be something to do. Returns whether to pull.

        due_in_s: seconds until the next wake-up that this worker knows. yields: this worker could not get through, so
        another idle worker should lead, if there is one.

        Returns as soon as `wake` is set, and clears it. Returns at once after taking the lead, because this worker's
        knowledge may be old: from the next pull on, an earlier wake-up wakes it. Returns False if the time is up while
        another worker leads: if both pulled, one would take the head of a backlog, and the other would find the rest
        held back behind it.
        """
        if not self.wake.is_set():
            led_before = self.leads
            if yields:
                await run_async(self._redis, self.hand_over(IN_VAIN))  # if nobody else is idle, it hears its own call
                lapses_in_ms = YIELD_MS
            else:
                lead = leaders.lead(self._worker, self._lanes, lapse_ms=self._lapse_ms)
                lapses_in_ms = await run_async(self._redis, lead)
                self.leads = not lapses_in_ms
            if self.leads and not led_before:
                if call := self._listening.pop(self._handover_list, None):
                    call.cancel()  # or the leader would hear its own handover
                return True
            if self.leads:
                for queue in self._queues:
                    # From the head to the head: the list stays as it is, and this returns as soon as it is not empty.
                    self._listen(queue, partial(self._blocking.blmove, queue, queue, self._listen_s, "LEFT", "LEFT"))
                self._listen_for_call(self._wake_list)
                timeout = self._longest_s if due_in_s is None else min(self._longest_s, due_in_s)
            else:
                self._listen_for_call(self._handover_list)
                timeout = lapses_in_ms / 1_000
            self._waits = True
            try:
                async with asyncio.timeout(timeout):
                    await self.wake.wait()
            except TimeoutError:
                return self.leads
            finally:  # also if cancelled: the listening tasks must end
                self._waits = False
        self.wake.clear()
        return True

    def hand_over(self, why: bytes = b"") -> Call[bool]:
        """Give up the lead. Returns the call that makes another idle worker of these lanes pull and lead.

        why: the prefix of the call's name, see IN_VAIN.
        """
        return self._call(why + uuid4().hex.encode())

    def pass_on(self, called: bytes) -> Call[bool] | None:
        """Give up the lead, and pass on the call that woke this worker; None if it did before: a call goes round once.

        Also None if this worker passed on another call just now: then a later pull takes this one along.
        """
        now = asyncio.get_running_loop().time()
        if not called or called in self._passed_on:
            return None
        if now < self._passes_on_at + PASS_ON_S:
            self.called = called
            return None
        self._passes_on_at = now
        self._passed_on.append(called)
        return self._call(called)

    async def close(self) -> None:
        while listening := [task for task in self._listening.values() if not task.done()]:
            for task in listening:
                task.cancel()
            await asyncio.wait(listening, timeout=AGAIN_S)  # cancelled again if a client swallowed it
        await self._blocking.aclose()

    def _call(self, name: bytes) -> Call[bool]:
        self.leads = False
        return leaders.hand_over(self._worker, self._lanes, name)

    def _listen_for_call(self, key: str) -> None:
        self._listen(key, partial(self._called, key))

    async def _called(self, key: str) -> bool:
        """Wait for a call. Returns whether it is for this worker, which puts it back if it no longer leads or waits."""
        if not (heard := await self._blocking.blpop([key], timeout=self._listen_s)):
            return False
        if takes := self._concerns(key) and not self._lets_pass(heard[1]):
            self.called = heard[1]
        else:
            await self._redis.rpush(key, heard[1])
        return takes

    def _lets_pass(self, call: bytes) -> bool:
        """Whether to leave the call to another worker, as this one cannot get through to a provider either."""
        if not self.in_trouble or not call.startswith(IN_VAIN) or call in self._passed_on:
            return False
        self._passed_on.append(call)
        return True

    def _listen(self, key: str, listen: Callable[[], Awaitable[object]]) -> None:
        task = self._listening.get(key)
        if task is None or task.done():
            self._listening[key] = asyncio.create_task(self._heard(key, listen))

    def _concerns(self, key: str) -> bool:
        """Whether a call on this list is for this worker: a handover is for a waiting worker, a wake for the leader."""
        return self._waits if key == self._handover_list else self.leads

    async def _heard(self, key: str, listen: Callable[[], Awaitable[object]]) -> None:
        try:
            while not await listen():
                # A blocking call that ends during a wait is made again, or nobody would listen for the rest of it.
                if not (self._waits and self._concerns(key)):
                    return
        except (RedisError, OSError):
            await asyncio.sleep(AGAIN_S)  # the pull that follows meets the error, and the next wait listens again
        self.wake.set()
