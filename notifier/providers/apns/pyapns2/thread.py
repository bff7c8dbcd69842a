"""The thread in which apns2 and hyper live: they block, and know nothing of event loops."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from notifier.providers.apns.pyapns2.connection import Connection
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.backoff import SECOND_US, Backoff
from notifier.providers.transport.words import unreachable_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifier.providers.apns.pyapns2.requests import Request
    from notifier.providers.transport.http2.requests import Result

# Apple takes rapid reconnects for an attack: so far apart connections are begun, even when all is well.
APART_S: Final = 0.2
IDLE_S: Final = 60.0  # a connection without a word for so long is asked whether it still lives
DOUBT_S: Final = 10.0  # …and for so long, before anything is entrusted to it
DOUBT_TIMEOUT_S: Final = 1.0


class Owner(threading.Thread):
    """Owns the connections to one host: the one that takes requests, and those that only finish what they began.

    deliver: called in this thread with what requests came to. Other threads call `put`, `drop`, `stop` and `abort`.
    stopping: it ends, and takes no requests any more.
    """

    def __init__(
        self,
        new_connection: Callable[[], Connection],
        deliver: Callable[[list[tuple[Request, Result | bool]]], None],
        timeout_s: float,
    ) -> None:
        super().__init__(name="apns2", daemon=True)
        self._new_connection = new_connection
        self._deliver = deliver
        self._timeout_s = timeout_s
        self._log = structlog.get_logger(__name__)
        self._waiting: deque[Request] = deque()
        self._dropped: deque[tuple[Request, bool]] = deque()
        self._results: list[tuple[Request, Result | bool]] = []
        self._connection: Connection | None = None
        self._living: set[Connection] = set()
        self._backoff = Backoff()
        self._not_before = 0.0  # no connection is begun earlier
        self._asked_at = self._answer_by = 0.0
        self.stopping = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringing = socket.socketpair()
        self._rung = False
        self._ringing.setblocking(False)
        self._bell.setblocking(False)

    # For other threads.

    def put(self, request: Request) -> None:
        """Send this as soon as it may go."""
        self._waiting.append(request)
        self._ring()

    def drop(self, request: Request, *, timed_out: bool) -> None:
        """End the stream of a request that had begun, and for which nobody waits any longer."""
        self._dropped.append((request, timed_out))
        self._ring()

    @property
    def connected(self) -> bool:
        """Whether there is a connection that takes requests."""
        return self._connection is not None

    def stop(self) -> None:
        """Hang up and end; what is waiting or under way gets no result any more."""
        self.stopping = True
        self._ring()

    def abort(self) -> None:
        """Break the connections, so that this thread does not wait for them."""
        for connection in list(self._living):
            connection.abort()

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            with contextlib.suppress(OSError):  # the thread has ended
                self._ringing.send(b"!")

    # The thread itself.

    def run(self) -> None:
        """Send and receive until stopped."""
        self._selector.register(self._bell, selectors.EVENT_READ)
        try:
            while not self.stopping:
                self._turn()
        except Exception:  # noqa: BLE001 - a fault of ours; the channel starts another thread
            self._log.exception("apns2_broke")
        finally:
            self.stopping = True  # before it answers: whoever sends then needs another thread
            for connection in list(self._living):
                self._end(connection)
            self._refuse_waiting()
            self._hand_over()
            for resource in (self._selector, self._bell, self._ringing):
                resource.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._select_timeout_s()):
            if key.fileobj is self._bell:
                self._bell.recv(64)
                self._rung = False
            else:
                self._use(key.data, self._receive)
        while self._dropped:
            request, timed_out = self._dropped.popleft()
            for connection in list(self._living):
                self._use(connection, partial(Connection.drop, request=request, timed_out=timed_out))
        self._keep_alive()
        self._send_waiting()
        for connection in list(self._living):
            self._use(connection, Connection.flush)
            if time.monotonic() >= connection.silent_at:
                self._end(connection)
            elif connection.retired:
                self._retire(connection)
        self._hand_over()

    def _select_timeout_s(self) -> float | None:
        if self._waiting and self._connection is None:
            return 0.0
        until = min((connection.silent_at for connection in self._living), default=math.inf)
        if self._connection is not None:
            heard_at = self._connection.heard_at
            until = min(until, self._answer_by if self._asked_at > heard_at else heard_at + IDLE_S)
        return None if until == math.inf else max(until - time.monotonic(), 0.0)

    def _use(self, connection: Connection, action: Callable[[Connection], None]) -> None:
        if connection not in self._living:
            return
        try:
            action(connection)
        except Exception as error:  # noqa: BLE001 - whatever hyper, h2 and the socket raise ends the connection
            self._log.info("connection_lost", error=type(error).__name__)
            self._end(connection)
            if not connection.answered:
                self._failed(connection, connection.heard_at, "ConnectionLost", "ended before it answered anything")

    def _receive(self, connection: Connection) -> None:
        self._results += connection.receive()
        if connection.answered:
            self._backoff.worked(time.monotonic())
        if connection.failure is not None:
            raise connection.failure

    def _keep_alive(self) -> None:
        connection, now = self._connection, time.monotonic()
        if connection is None:
            return
        if self._asked_at > connection.heard_at:
            if now >= self._answer_by:
                self._log.info("connection_dead", idle_s=round(now - connection.heard_at))
                self._end(connection)
        elif now >= connection.heard_at + IDLE_S:
            self._ask(connection, self._timeout_s)

    def _ask(self, connection: Connection, timeout_s: float) -> None:
        now = time.monotonic()
        if self._asked_at > connection.heard_at:
            self._answer_by = min(self._answer_by, now + timeout_s)
        else:
            self._asked_at, self._answer_by = now, now + timeout_s
            self._use(connection, Connection.ping_server)

    def _sure(self, connection: Connection) -> bool:
        """Whether the other end was heard of lately. If not it is asked before anything is entrusted to it."""
        if connection.open or time.monotonic() - connection.heard_at < DOUBT_S:
            return True
        self._ask(connection, min(DOUBT_TIMEOUT_S, self._timeout_s / 4))
        return False

    def _send_waiting(self) -> None:
        while self._waiting and (self._connection or self._open()):
            assert self._connection is not None
            if not self._sure(self._connection) or not self._connection.admits(self._waiting[0]):
                return
            request = self._waiting.popleft()
            if request.begin():
                self._use(self._connection, partial(Connection.start, request=request))
            else:
                self._results.append((request, Answer(Outcome.UNSENT, reason="TooLate")))

    # Connections.

    def _open(self) -> bool:
        now = time.monotonic()
        if now < self._not_before or self._backoff.left_us(now):
            self._refuse_waiting()
            return False
        self._not_before = now + APART_S
        connection = self._new_connection()
        try:
            connection.connect()
        except Exception as error:  # noqa: BLE001 - as in `_use`
            connection.hang_up()
            words = unreachable_words(error, connection.host, connection.port) if isinstance(error, OSError) else ""
            self._failed(connection, now, type(error).__name__, str(error), words)
            self._refuse_waiting()
            return False
        self._living.add(connection)
        self._connection = connection
        self._selector.register(connection, selectors.EVENT_READ, connection)
        return True

    def _retire(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        if not (connection.open or connection.asked):
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        if connection not in self._living:
            return
        self._living.remove(connection)
        if self._connection is connection:
            self._connection = None
        self._selector.unregister(connection)
        self._results += connection.hang_up()

    def _failed(self, connection: Connection, began: float, kind: str, why: str, words: str = "") -> None:
        now, host, port = time.monotonic(), connection.host, connection.port
        self._backoff.seen = words or f"{host}:{port}: {why}"
        # Once as a warning: while it lasts, every attempt says the same.
        log = self._log.warning if self._backoff.failed(began, now) else self._log.debug
        wait_ms = self._backoff.left_us(now) // 1000
        log("provider_unreachable", host=host, port=port, error=kind, why=why, wait_ms=wait_ms)

    def _refuse_waiting(self) -> None:
        now = time.monotonic()
        apart_us = math.ceil((self._not_before - now) * SECOND_US)
        wait_us = max(self._backoff.left_us(now), apart_us, 0) or None
        seen = self._backoff.seen if self._backoff.failing else ""
        answer = Answer(Outcome.UNSENT, reason="Unreachable", retry_after_us=wait_us, seen=seen)
        while self._waiting:
            self._results.append((self._waiting.popleft(), answer))

    def _hand_over(self) -> None:
        if self._results:
            results, self._results = self._results, []
            self._deliver(results)
