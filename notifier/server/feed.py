"""Server-Sent Events with the changing minutes of the page Now. All clients share one read of Redis."""

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
MINUTES: Final = 60  # that a stream sends first
NEWEST: Final = 2  # that may still change, as Redis's clock turns the minute
AGAIN_MS: Final = 2_000  # after which a browser reconnects if its stream has ended

Minutes = list[dict[str, Any]]


class Feed:
    """Reads once a second for all clients together, if there are any. watching: their number.

    read: returns the given number of minutes as `notifier.operations.stats.Stats.by_minute` does, the newest last.
    """

    def __init__(self, read: Callable[[int], Awaitable[Minutes]]) -> None:
        self._read = read
        self._readings: dict[int, tuple[float, asyncio.Future[Minutes]]] = {}  # by number: start, result
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
        """Yield one client's events: first all minutes, then the changed ones; a comment if none changes for a while.

        All minutes come again after an error, and if a client reads so slowly that it has missed minutes.
        """
        yield f"retry: {AGAIN_MS}\n\n"
        known, trouble, sent_at = Minutes(), "", monotonic()
        while not self._ended.is_set():
            found, why, event = Minutes(), "", ""
            try:
                found = await self._last(NEWEST if known else MINUTES)
                if known and found[0]["at"] > known[-1]["at"]:  # a slow client has missed minutes
                    known = found = Minutes()
                    found = await self._last(MINUTES)
            except (ProblemError, NotifierError) as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - the stream goes on, whatever Redis holds
                why = tell_unreadable(error)
            if new := [each for each in found if each not in known]:
                event = _event("numbers", {"minutes": new})
            elif why != trouble:
                event = _event("trouble", {"detail": why})
            elif monotonic() - sent_at >= HEARTBEAT_S:
                event = ": nothing has changed\n\n"
            known, trouble = found, why
            if event:
                sent_at = monotonic()
                yield event
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), EVERY_S)

    async def _last(self, minutes: int) -> Minutes:
        """The last minutes. Clients share a read that is under way, or that began less than EVERY_S / 2 ago."""
        began, reading = self._readings.get(minutes, (0.0, None))
        if reading is None or (reading.done() and monotonic() - began >= EVERY_S / 2):
            reading = asyncio.ensure_future(self._read(minutes))
            self._readings[minutes] = monotonic(), reading
        return await asyncio.shield(reading)


class _Stream(StreamingResponse):
    """A stream, counted until the client leaves or the server stops."""

    def __init__(self, feed: Feed) -> None:
        unbuffered = {"X-Accel-Buffering": "no"}  # nginx would collect some KB of events before it passes them on
        super().__init__(feed.events(), media_type="text/event-stream", headers=HEADERS | unbuffered)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._feed.watching += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.watching -= 1


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
