"""Requests to one HTTP/2 server over a connection that is opened when needed, kept, and replaced when it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import structlog
from hpack import HeaderTuple

from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.backoff import MANY, WAITS
from notifier.providers.transport.http2.connection import Connection
from notifier.providers.transport.http2.requests import RESPONSE_BYTES, Request, Result, Waiting
from notifier.providers.transport.http2.wire import Said, Wire
from notifier.providers.transport.words import unreachable_words

# Apple takes rapid reconnects for an attack. The shortest time between two connections, even if all is well.
BACKOFF_MIN_S: Final = 0.2
GOODBYE_S: Final = 1.0

W = TypeVar("W", bound=Wire)


class Channel:
    """Sends requests to one host; lives in one event loop. Nothing here raises for what a network does."""

    def __init__(
        self, *, host: str, port: int, tls: ssl.SSLContext, timeout_s: float, max_response: int = RESPONSE_BYTES
    ) -> None:
        """max_response: how many bytes of a response are kept."""
        self._host = host
        self._max_response = max_response
        self._port = port
        self._tls = tls
        self._timeout_s = timeout_s
        self._words = ""  # why the server cannot be reached
        self._log = structlog.get_logger(__name__).bind(host=host, port=port)
        self._waiting: Waiting = OrderedDict()
        self._connection: Connection | None = None
        self._opened_at = 0.0
        self._unjudged: Connection | None = None  # ended by the server in order; a failure if it never answers
        self._living: set[Connection] = set()  # and retired ones that still have requests
        self._opening: asyncio.Task[None] | None = None
        self._said = Said()
        self._new_connection = partial(
            Connection, self._waiting, timeout_s=timeout_s, on_retire=self._on_retire, said=self._said
        )
        self._failures = 0
        self._not_before = 0.0  # no connection is begun earlier; on the loop's clock
        self._closed = False

    async def request(self, headers: list[HeaderTuple], body: bytes, *, send_by: float) -> Result:
        """Send one request. It is not begun after `send_by`, a time of the loop's clock."""
        now = asyncio.get_running_loop().time()
        if self._closed:
            return Answer(Outcome.UNSENT, reason="Closed")
        if now >= send_by:
            return Answer(Outcome.UNSENT, reason="TooLate")
        if self._connection is None and self._opening is None and not self._may_open():
            return self._unsent("Unreachable")
        deadline = now + self._timeout_s
        request = Request(headers, body, send_by=send_by, deadline=deadline, max_response=self._max_response)
        self._arm(request, min(request.deadline, send_by))
        self._waiting[request] = None
        if self._connection is not None:
            self._connection.wake()
        elif self._opening is None:
            self._open_soon()
        try:
            return await request.result
        finally:
            assert request.timer is not None
            request.timer.cancel()
            if request.result.cancelled():
                self._drop(request, "Cancelled")

    async def lives(self) -> bool:
        """Whether the server answers two PINGs, on a connection of their own; see `Provider.probe`.

        Works after `close` too.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                wire = await self._connect(partial(Wire, timeout_s=self._timeout_s, said=self._said))
                try:
                    for _ in range(2):
                        answered = wire.has_read(loop.time())
                        # The wire resolves the future in any case.
                        if answered is None or not await asyncio.shield(answered):
                            return False
                finally:
                    wire.hang_up()
        except (OSError, ValueError):  # a TimeoutError is an OSError; a bad host name raises UnicodeError
            return False
        return True

    async def close(self) -> None:
        """Close all connections. Requests that were sent become UNKNOWN, waiting ones UNSENT."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._refuse_waiting("Closed")
        living = list(self._living)
        for connection in living:
            connection.close()
        if living:
            _, late = await asyncio.wait([c.ended for c in living], timeout=GOODBYE_S)
            if late:
                for connection in living:
                    connection.abort()
                await asyncio.wait(late, timeout=GOODBYE_S)

    # Time.

    def _arm(self, request: Request, when: float) -> None:
        request.timer = asyncio.get_running_loop().call_at(when, self._expire, request)

    def _expire(self, request: Request) -> None:
        now = asyncio.get_running_loop().time()
        ends = request.deadline if request.complete else min(request.send_by, request.deadline)
        if now < ends:  # begun meanwhile, so it has more time
            self._arm(request, ends)
        else:
            self._drop(request, "Timeout" if now >= request.deadline else "TooLate")

    def _drop(self, request: Request, reason: str) -> None:
        if request.give_up is not None:
            request.give_up(request, reason)
        else:
            self._waiting.pop(request, None)
            if self._connection is not None and reason != "Cancelled":
                if self._connection.is_shut:
                    # The wait for the connection before this one does not count against this one.
                    self._connection.note_starved(max(self._opened_at, request.deadline - self._timeout_s))
                elif reason == "Timeout":
                    reason = "NoStream"  # the server answers others, but too slowly for all
            if self._connection is None:  # the attempt to connect had the same time, and has not ended yet
                seen = unreachable_words(TimeoutError(), self._host, self._port)
                request.resolve(Answer(Outcome.UNSENT, reason=reason, seen=seen))
            request.lose(reason)

    # The connection.

    def _may_open(self) -> bool:
        # After a connection that answered, requests wait the short time for the next. After a failure they do not.
        return self._failures == 0 or asyncio.get_running_loop().time() >= self._not_before

    def _open_soon(self) -> None:
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(self._opened)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        if (wait_s := self._not_before - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        self._not_before = loop.time() + BACKOFF_MIN_S
        async with asyncio.timeout(self._timeout_s):
            connection = await self._connect(self._new_connection)
        if connection.protocol != "h2":
            connection.abort()
            self._back_off("ProtocolError", "the server does not speak HTTP/2")
            return
        if connection.retired:
            self._back_off("ConnectionLost", _unanswered(connection))
            return
        self._living.add(connection)
        connection.ended.add_done_callback(partial(self._on_end, connection))
        self._connection, self._opened_at = connection, loop.time()
        connection.wake()

    async def _connect(self, made: Callable[[], W]) -> W:
        _, wire = await asyncio.get_running_loop().create_connection(
            made,
            self._host,
            self._port,
            ssl=self._tls,
            server_hostname=self._host,
            ssl_shutdown_timeout=GOODBYE_S,  # do not wait for a server that does not close TLS
        )
        return wire

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._back_off(type(error).__name__, str(error), unreachable_words(error, self._host, self._port))
        elif self._waiting and self._connection is None and not self._closed:
            self._replace()

    def _on_retire(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if connection.answered:
            self._failures = 0
        elif connection.finishing and self._failures == 0 and self._unjudged is None:
            # A server that restarts in order has no outage. This holds for one connection at a time: else a server that
            # sends each of them a GOAWAY and no answer would get a new one every 0.2 s.
            self._unjudged = connection
        else:
            self._back_off("ConnectionLost", _unanswered(connection))
        self._replace()

    def _on_end(self, connection: Connection, _: asyncio.Future[None]) -> None:
        self._living.discard(connection)
        if connection is self._unjudged:
            self._unjudged = None
            if not connection.answered and self._connection is None:
                self._back_off("ConnectionLost", _unanswered(connection))

    def _replace(self) -> None:
        if not self._waiting or self._closed or self._opening is not None:
            return
        if self._may_open():
            self._open_soon()
        else:
            self._refuse_waiting("Unreachable")

    def _back_off(self, kind: str, why: str, words: str = "") -> None:
        if self._closed:
            return
        self._words = words or f"{self._host}:{self._port}: {why}"
        wait_s = max(BACKOFF_MIN_S, WAITS.compute(self._failures))
        self._failures = min(self._failures + 1, MANY)
        self._not_before = asyncio.get_running_loop().time() + wait_s
        # Only the first of an outage is a warning: every attempt logs the same.
        log = self._log.warning if self._failures == 1 else self._log.debug
        log("provider_unreachable", error=kind, why=why, wait_ms=round(wait_s * 1000))
        self._refuse_waiting("Unreachable")

    def _refuse_waiting(self, reason: str) -> None:
        while self._waiting:
            request, _ = self._waiting.popitem(last=False)
            request.resolve(self._unsent(reason))

    def _unsent(self, reason: str) -> Answer:
        left_s = max(self._not_before - asyncio.get_running_loop().time(), 0.0)
        return Answer(Outcome.UNSENT, reason=reason, retry_after_us=round(left_s * 1_000_000) or None, seen=self._words)


def _unanswered(connection: Connection) -> str:
    return f"ended before it answered anything{f': {connection.why_lost}' if connection.why_lost else ''}"
