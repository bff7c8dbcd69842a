"""Idle workers: of those that serve the same lanes one, the leader, waits for what comes next; the others wait for it.

The leader listens on its lanes for a push, on a list for something that fell due earlier than it knew, and on its own
timer for the next wake-up: Redis's timeouts are too coarse for that. So a job that arrives among two dozen idle workers
wakes one of them, and so does a wake-up. A leader that has more to do than it can hold hands over: one more worker
wakes, looks, and leads. So does one that cannot get through to a provider; others that cannot either let such a call
pass, once, so that it comes to whoever can. The lead of a worker that died lapses.
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

LONGEST_S: Final = 1.0  # between two looks of the leader: bounds what a lost wake can cost
LOOKS_PER_S: Final = 6  # of all engines in a process: those of many idle partitions look more seldom
LAPSE: Final = 1.5  # times the longest wait: then the lead of a worker that died is another's
LISTEN_S: Final = 1.0  # of one blocking call; ends of themselves those that nobody waits for any more
LISTEN_MANY_S: Final = 60.0  # the same, where a process has many of them
YIELD_MS: Final = 1_000  # so long another has to take the lead: whoever heard the call may have gone
AGAIN_S: Final = 0.5  # after a connection was lost
PASS_ON_S: Final = 0.1  # the least time between two calls that are passed on
MOST_CALLS: Final = 1_000  # of which it is known that they were passed on
IN_VAIN: Final = b"in vain "  # so begins the name of a call by one that could not get through


def listen_s(engines: int) -> float:
    """How long a blocking call lasts, where so many engines are in a process."""
    return LISTEN_S if engines == 1 else LISTEN_MANY_S


class IdleWorker:
    """One worker's part in this. leads: whether it leads. in_trouble: whether it cannot get through to a provider."""

    def __init__(self, blocking: Any, redis: Any, worker: str, lanes: Sequence[str], engines: int = 1) -> None:
        """blocking: an asyncio client for calls that block up to `listen_s`; redis: the one for all else.

        engines: how many there are in this process.
        """
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
        self.called = b""  # the call that it was woken by last, until it looks
        self._passed_on: deque[bytes] = deque(maxlen=MOST_CALLS)
        self._passes_on_at = -PASS_ON_S
        self.wake = asyncio.Event()
        self.leads = False
        self.in_trouble = False

    async def wait(self, due_in_s: float | None, *, yields: bool = False) -> bool:
        """Wait until there may be something to do; due_in_s: seconds until the next thing known to fall due.

        yields: rather let another idle worker lead, if there is one: this one could not get through.

        Returns as soon as `wake` is set, which is then cleared; and at once after taking the lead, because what
        was known before may be old: from the next look on, whoever makes something due earlier wakes it.
        Returns whether to look: not where the time is up while another leads, who looks. If both did, one of them would
        take the first of a backlog, and the other would look in vain at those behind it.
        """
        if not self.wake.is_set():
            led_before = self.leads
            if yields:
                await run_async(self._redis, self.hand_over(IN_VAIN))  # where nobody else is idle it hears its own call
                lapses_in_ms = min(self._lapse_ms, YIELD_MS)
            else:
                lead = leaders.lead(self._worker, self._lanes, lapse_ms=self._lapse_ms)
                lapses_in_ms = await run_async(self._redis, lead)
                self.leads = not lapses_in_ms
            if self.leads and not led_before:
                if call := self._listening.pop(self._handover_list, None):
                    call.cancel()  # or it hears its own call, by which another is to look
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
                async with asyncio.timeout(max(0.0, timeout)):
                    await self.wake.wait()
            except TimeoutError:
                return self.leads
            finally:  # also where it is cancelled: whoever listens is to come to an end
                self._waits = False
        self.wake.clear()
        return True

    def hand_over(self, why: bytes = b"") -> Call[bool]:
        """The call by which another idle worker of these lanes looks, and leads. This one does not, from now on.

        why: with what the call's name begins, see IN_VAIN.
        """
        return self._call(why + uuid4().hex.encode())

    def pass_on(self, called: bytes) -> Call[bool] | None:
        """The call by which this one was called, to the next; None where it has had it before: it goes round once.

        And None where it has just passed one on: then this one goes with a later look.
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
        """Listen to nobody any more."""
        while listening := [task for task in self._listening.values() if not task.done()]:
            for task in listening:
                task.cancel()
            await asyncio.wait(listening, timeout=AGAIN_S)  # cancelled again where a client has swallowed it
        await self._blocking.aclose()

    def _call(self, name: bytes) -> Call[bool]:
        self.leads = False
        return leaders.hand_over(self._worker, self._lanes, name)

    def _listen_for_call(self, key: str) -> None:
        self._listen(key, partial(self._called, key))

    async def _called(self, key: str) -> bool:
        """Whether a call has come for this worker. Who leads no longer, or waits no longer, passes on what it hears."""
        if not (heard := await self._blocking.blpop([key], timeout=self._listen_s)):
            return False
        if takes := self._concerns(key) and not self._lets_pass(heard[1]):
            self.called = heard[1]
        else:
            await self._redis.rpush(key, heard[1])
        return takes

    def _lets_pass(self, call: bytes) -> bool:
        """Whether another is to try first what the caller tried in vain: this one cannot get through either."""
        if not self.in_trouble or not call.startswith(IN_VAIN) or call in self._passed_on:
            return False
        self._passed_on.append(call)
        return True

    def _listen(self, key: str, listen: Callable[[], Awaitable[object]]) -> None:
        task = self._listening.get(key)
        if task is None or task.done():
            self._listening[key] = asyncio.create_task(self._heard(key, listen))

    def _concerns(self, key: str) -> bool:
        """Whether what is heard there is for this worker: for a follower that waits, or for the leader."""
        return self._waits if key == self._handover_list else self.leads

    async def _heard(self, key: str, listen: Callable[[], Awaitable[object]]) -> None:
        try:
            while not await listen():
                # A call that ended in the middle of a wait is made again, or nobody would listen for the rest of it.
                if not (self._waits and self._concerns(key)):
                    return
        except (RedisError, OSError):
            await asyncio.sleep(AGAIN_S)  # who looks now learns what has become of Redis, and listens there
        self.wake.set()
