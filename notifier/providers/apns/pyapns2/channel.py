"""Requests to Apple over apns2: the side of the event loop. The other one is a thread that this side owns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from notifier.providers.apns.pyapns2.connection import Connection
from notifier.providers.apns.pyapns2.requests import Request
from notifier.providers.apns.pyapns2.thread import Owner
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.http2.reads import SILENCE_S
from notifier.providers.transport.words import unreachable_words

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence

    from notifier.providers.transport.http2.requests import Result

GOODBYE_S: Final = 1.0


class Channel:
    """As `http2_channel.Channel`: one host, one event loop, nothing raised for what a network does.

    Nothing in here waits for the thread: every request has its own timer, so that whatever apns2, hyper or the
    resolver of names may be stuck in, an answer comes in time.
    """

    def __init__(self, *, host: str, port: int, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._new_connection = partial(Connection, host, port, tls=tls, timeout_s=timeout_s)
        self._no_connection = unreachable_words(TimeoutError(), host, port)
        self._timeout_s = timeout_s
        self._under_way: set[Request] = set()
        self._owner: Owner | None = None
        self._closed = False

    async def request(self, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, send_by: float) -> Result:
        """Send one request; send_by is on the loop's clock, past it the request is not begun any more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._closed or now >= send_by:
            return Answer(Outcome.UNSENT, reason="Closed" if self._closed else "TooLate")
        request = Request(headers, body, send_by=send_by)
        request.timer = loop.call_at(min(now + self._timeout_s, send_by), self._expire, request)
        self._under_way.add(request)
        self._thread().put(request)
        try:
            return await request.result
        finally:
            self._under_way.discard(request)
            request.timer.cancel()
            if request.result.cancelled():
                self._give_up(request, "Cancelled")

    async def close(self) -> None:
        """Close the connections and end the thread: what was sent becomes UNKNOWN, what still waits UNSENT."""
        self._closed = True
        for request in list(self._under_way):
            request.give_up()
            request.resolve(request.lost("Closed"))
        owner, self._owner = self._owner, None
        if owner is None:
            return
        owner.stop()
        abort = asyncio.get_running_loop().call_later(GOODBYE_S, owner.abort)
        await asyncio.to_thread(owner.join, 2 * GOODBYE_S)
        abort.cancel()

    def _thread(self) -> Owner:
        if self._owner is None or self._owner.stopping:
            deliver = partial(self._deliver, asyncio.get_running_loop())
            self._owner = Owner(self._new_connection, deliver, self._timeout_s)
            self._owner.start()
        return self._owner

    def _expire(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        begun = request.begun
        ends = now + request.begun_at + self._timeout_s - time.monotonic() if begun else now
        if now < ends:  # it was begun meanwhile
            request.timer = loop.call_at(ends, self._expire, request)
        else:
            self._give_up(request, "Timeout" if begun or now < request.send_by else "TooLate")

    def _give_up(self, request: Request, reason: str) -> None:
        begun, lost = request.give_up(), request.lost(reason)
        if isinstance(lost, Answer) and lost.outcome is Outcome.UNKNOWN:
            loop = asyncio.get_running_loop()
            lost.passed = request.passed = loop.create_future()
            loop.call_later(SILENCE_S, request.resolve, False)  # also where the thread is stuck
        elif isinstance(lost, Answer) and self._owner is not None and not self._owner.connected:
            lost.seen = self._no_connection
        request.resolve(lost)
        if begun and self._owner is not None:
            self._owner.drop(request, timed_out=reason == "Timeout")

    @staticmethod
    def _deliver(loop: asyncio.AbstractEventLoop, results: Iterable[tuple[Request, Result | bool]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all who waited
            loop.call_soon_threadsafe(_resolve, results)


def _resolve(results: Iterable[tuple[Request, Result | bool]]) -> None:
    for request, result in results:
        request.resolve(result)
