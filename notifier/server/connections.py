"""Limits on the server's connections: their number, and the time to send a request and to read the answer.

uvicorn itself waits for ever for a request, and for the client to read the answer. Clients that send or read nothing
could hold every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from notifier.server.answers import problem

HEAD_S: Final = 10.0  # from the start of a connection, or the end of the last answer, to the end of a request's head
BODY_S: Final = 20.0
TAKE_S: Final = 20.0  # from a full send buffer until the client has read most of it
MAX_OF_ADDRESS: Final = 128  # enough for a proxy in front of this server
SAID_S: Final = 60.0
MAX_SAID: Final = 3  # lines of a kind, in SAID_S
MAX_KINDS: Final = 512
KIND: Final = 40  # characters by which a line is of a kind; behind them asyncio writes where in the memory things are


class Crowd(set["LimitedProtocol"]):
    """The connections of one server. If there are too many, it closes the one whose client has been slow longest.

    A client is slow while it owes a head, or does not read its answers. most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def admit(self, one: LimitedProtocol) -> None:
        """Add a new connection, unless there are too many and none of them can be closed for it."""
        of_address = {each for each in self if each.address == one.address}
        if len(of_address) >= MAX_OF_ADDRESS and not _close_slowest(of_address):
            return
        if len(self) >= self.most and not _close_slowest(self):
            return
        self.add(one)


def _close_slowest(some: Iterable[LimitedProtocol]) -> bool:
    slow = {one: since for one in some if (since := one.slow_since()) is not None}
    if slow:
        min(slow, key=slow.__getitem__).cut()
    return bool(slow)


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, with deadlines for heads and answers. crowd: the server's connections; a subclass sets it."""

    crowd: Crowd

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._deadline: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None
        self.crowd.admit(self)
        if self in self.crowd:
            self._owe_head()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing():
            self._has_head()

    def _should_upgrade(self) -> bool:
        """Upgrade nothing. uvicorn would advise in the log to install a library for web sockets."""
        return False

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP. If it is the body of a request, the application's answer is dropped."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # else the application would write a second answer, or the end of a first
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            with contextlib.suppress(h11.LocalProtocolError):  # an answer to HEAD has no text
                super().send_400_response(msg)
        self.transport.close()
        self._owe_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self in self.crowd and self.cycle.response_complete:
            self._owe_head()  # even if it is to close: that waits until the client has read the answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = self.loop.call_later(TAKE_S, self.cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        self.resume_writing()
        self.crowd.discard(self)
        super().connection_lost(exc)

    def cut(self) -> None:
        self.crowd.discard(self)
        self.transport.abort()

    def slow_since(self) -> float | None:
        """Since when the client owes a head, or does not read its answers; None if it does neither."""
        waits = (self._deadline, HEAD_S), (self._untaken, TAKE_S)
        return min((timer.when() - lasts for timer, lasts in waits if timer is not None), default=None)

    def _owe_head(self) -> None:
        self._has_head()
        self._deadline = self.loop.call_later(HEAD_S, self.cut)

    def _has_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def limited(most: int) -> type[LimitedProtocol]:
    """A protocol class for one server, with a crowd of its own. most: as for `Crowd`."""
    return type("Limited", (LimitedProtocol,), {"crowd": Crowd(most)})


class Bodies:
    """Bounds the wait for a request's body, and closes the connection if the answer comes before the body's end.

    It refuses a request that gives its length in two ways: a proxy in front of it might see another end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        names = {name for name, _ in scope["headers"]}
        ended = not names & {b"content-length", b"transfer-encoding"}
        until = time.monotonic() + BODY_S

        async def timely() -> Message:
            nonlocal ended
            if ended:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                return {"type": "http.disconnect"}
            ended = not message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not ended:
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        if {b"content-length", b"transfer-encoding"} <= names:
            return await problem(400, "Two lengths", "give Content-Length or Transfer-Encoding")(scope, timely, closing)
        return await self._app(scope, timely, closing)


class Brake(logging.Filter):
    """Lets MAX_SAID lines of a kind through in SAID_S, and later says how many more there were."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, kind = time.monotonic(), str(record.msg)[:KIND]
        began, count = self._said.get(kind, (now, 0))
        if now - began >= SAID_S:
            if count > MAX_SAID:
                record.msg = f"{record.msg} ({count - MAX_SAID} more like this in the last minute)"
            began, count = now, 0
        if len(self._said) > MAX_KINDS:
            self._said.clear()
        self._said[kind] = began, count + 1
        return count < MAX_SAID
