"""The numbers of the page Now while they change, as Server-Sent Events; read once for all who watch."""

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
AGAIN_MS: Final = 2_000  # after which a browser comes again, where its stream broke

Read = Callable[[int], Awaitable[dict[str, Any]]]


class Feed:
    """Reads while somebody watches, once a second however many do. watching: how many do.

    read: of so many minutes, the newest last, what `notifier.operations.stats.Stats.as_live` tells.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._one_reads = asyncio.Lock()
        self._read_at, self._succeeded_at = -EVERY_S, 0.0
        self._minutes: dict[int, Any] = {}
        self._others: dict[str, Any] = {}
        self._trouble = ""
        self.watching = 0
        self._ended = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether nobody more may watch."""
        return self.watching >= MAX_STREAMS

    def end(self) -> None:
        """End all streams: the server stops."""
        self._ended.set()

    def answer(self) -> StreamingResponse:
        """One stream."""
        return _Stream(self)

    async def events(self) -> AsyncIterator[str]:
        """Yield what one watcher is told: at first all minutes, then what has changed; a comment if nothing has.

        After a trouble there is an event always.
        """
        yield f"retry: {AGAIN_MS}\n\n"
        minutes, others, trouble, told_at = dict[int, Any](), dict[str, Any](), "", monotonic()  # as told last
        while not self._ended.is_set():
            await self._renew()
            told = ""
            if self._trouble and self._trouble != trouble:
                told = _event("trouble", {"detail": self._trouble})
            elif not self._trouble and (minutes, others, trouble) != (self._minutes, self._others, ""):
                new = [each for at, each in self._minutes.items() if each != minutes.get(at)]
                told = _event("numbers", {"minutes": new, **self._others})
                minutes, others = self._minutes, self._others
            trouble = self._trouble
            if not told and monotonic() - told_at >= HEARTBEAT_S:
                told = ": nothing has changed\n\n"
            if told:
                told_at = monotonic()
                yield told
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), EVERY_S)

    async def _renew(self) -> None:
        """Read, unless that was done for another just now."""
        async with self._one_reads:
            if monotonic() - self._read_at < EVERY_S / 2:
                return
            try:
                self._take(await self._read(self._missing()))
                self._trouble, self._succeeded_at = "", monotonic()
            except (ProblemError, NotifierError) as error:
                self._trouble = str(error)
            except Exception as error:  # noqa: BLE001 - whatever somebody has written there, the stream goes on
                self._trouble = tell_unreadable(error)
            self._read_at = monotonic()

    def _missing(self) -> int:
        """How many minutes may have changed since they were read; one more, as Redis's clock turns them."""
        return min(MINUTES, 2 + int((monotonic() - self._succeeded_at) / 60)) if self._minutes else MINUTES

    def _take(self, told: dict[str, Any]) -> None:
        known = self._minutes | {each["at"]: each for each in told["minutes"]}
        self._minutes = dict(sorted(known.items())[-MINUTES:])
        self._others = {name: value for name, value in told.items() if name != "minutes"}


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
