"""The minutes of the page Now as they change, as Server-Sent Events; read once for all who watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from notifier.errors import NotifierError
from notifier.server.answers import HEADERS, ProblemError, tell_unreadable

EVERY_S: Final = 1.0
HEARTBEAT_S: Final = 15.0
MAX_STREAMS: Final = 32
MINUTES: Final = 60  # that a stream begins with
NEWEST: Final = 2  # that may have changed since; one more, as Redis's clock turns them
AGAIN_MS: Final = 2_000  # after which a browser comes again, where its stream ended

Minutes = list[dict[str, Any]]


class Feed:
    """Reads while somebody watches, once a second however many do. watching: how many do.

    read: so many minutes, the newest last, as `notifier.operations.stats.Stats.by_minute` tells them.
    """

    def __init__(self, read: Callable[[int], Awaitable[Minutes]]) -> None:
        self._read = read
        self._readings: dict[int, tuple[float, asyncio.Future[Minutes]]] = {}  # of so many minutes: when, what
        self.watching = 0
        self._ended = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self.watching >= MAX_STREAMS

    def end(self) -> None:
        self._ended.set()

    def answer(self) -> StreamingResponse:
        return _Stream(self)

    async def events(self) -> AsyncIterator[str]:
        """Yield what one watcher is told: at first all minutes, then those that have changed; a comment if none has.

        After a trouble it is told all of them again, and where it reads so slowly that minutes have passed.
        """
        yield f"retry: {AGAIN_MS}\n\n"
        known, trouble, told_at = Minutes(), "", monotonic()
        while not self._ended.is_set():
            found, why, told = Minutes(), "", ""
            try:
                found = await self._last(NEWEST if known else MINUTES)
                if known and found[0]["at"] > known[-1]["at"]:  # who reads slowly was not asked for those between
                    known = found = Minutes()
                    found = await self._last(MINUTES)
            except (ProblemError, NotifierError) as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - whatever somebody has written there, the stream goes on
                why = tell_unreadable(error)
            if new := [each for each in found if each not in known]:
                told = _event("numbers", {"minutes": new})
            elif why != trouble:
                told = _event("trouble", {"detail": why})
            elif monotonic() - told_at >= HEARTBEAT_S:
                told = ": nothing has changed\n\n"
            known, trouble = found, why
            if told:
                told_at = monotonic()
                yield told
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), EVERY_S)

    async def _last(self, minutes: int) -> Minutes:
        """The last minutes; read, unless that is done for another, or was just now."""
        began, reading = self._readings.get(minutes, (0.0, None))
        if reading is None or (reading.done() and monotonic() - began >= EVERY_S / 2):
            reading = asyncio.ensure_future(self._read(minutes))
            self._readings[minutes] = monotonic(), reading
        return await asyncio.shield(reading)


class _Stream(StreamingResponse):
    """Counted as long as it lasts: until the client goes, or the server ends."""

    def __init__(self, feed: Feed) -> None:
        unbuffered = {"X-Accel-Buffering": "no"}  # nginx would keep events back until some KB have come
        super().__init__(feed.events(), media_type="text/event-stream", headers=HEADERS | unbuffered)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._feed.watching += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.watching -= 1


def _event(name: str, told: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(told)}\n\n"
