"""Messages that wait at the same time go to Expo in one request: up to 100, over up to six connections at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from notifier.providers.contract import Answer, Outcome

MAX_MESSAGES: Final = 100  # Expo's limit of a request
OK: Final = 200
MAX_REQUESTS: Final = 6  # at once, as Expo asks
TOO_LATE: Final = Answer(Outcome.UNSENT, reason="TooLate")

Replied: TypeAlias = tuple[Answer, str]  # Expo's answer for a message, and the id of its receipt or ''


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message. send_by: see `Dispatch`."""

    message: bytes
    send_by: float
    answer: asyncio.Future[Replied]


class Batches:
    """Gathers messages into requests. post: sends one, and returns an answer for each of its messages; never raises."""

    def __init__(self, post: Callable[[Sequence[Waiting]], Awaitable[Sequence[Replied]]]) -> None:
        self._post = post
        self._waiting: deque[Waiting] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def send(self, message: bytes, send_by: float) -> Replied:
        """Send a message in one request with other messages of the same moment."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(message, send_by, loop.create_future())
        self._waiting.append(waiting)
        loop.call_soon(self._begin)  # so that the other callbacks of this turn can add messages
        return await waiting.answer

    def _begin(self) -> None:
        while self._waiting and len(self._under_way) < MAX_REQUESTS:
            batch = [self._waiting.popleft() for _ in range(min(MAX_MESSAGES, len(self._waiting)))]
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._under_way.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._begin()

    async def _send(self, batch: Sequence[Waiting]) -> None:
        now = asyncio.get_running_loop().time()
        for waiting in batch:
            if waiting.send_by <= now and not waiting.answer.done():
                waiting.answer.set_result((TOO_LATE, ""))
        batch = [waiting for waiting in batch if not waiting.answer.done()]
        if not batch:
            return
        replied = await self._post(batch)
        if replied[0][0] == TOO_LATE:  # the time of a message was up: the others go without it
            await self._send(batch)
            return
        if len(batch) > 1 and all(answer.outcome is Outcome.REJECTED and answer.status != OK for answer, _ in replied):
            # One message made Expo refuse the whole request. None was taken, and the others must not suffer for it.
            for waiting in batch:
                await self._send([waiting])
            return
        for waiting, reply in zip(batch, replied, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(reply)
