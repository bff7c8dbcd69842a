"""aiohttp's connections, protected against bytes without a request and answers without an end.

aiohttp reuses an idle connection without a check. Bytes that have arrived on it would become the next request's answer.
"""

from __future__ import annotations

import asyncio
import select
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from notifier.providers.transport.cut import abort, cut

MAX_ANSWERS: Final = 16  # to one request: early hints, then the answer
HEADS_BYTES: Final = 49_152  # of the heads of all these; more of them ends the connection
PART_BYTES: Final = 16_384  # parsed at a time: one read may bring thousands of answers


class Handler(ResponseHandler):
    """The client's end of one connection. Bytes without a request end it. max_bytes: of a body."""

    def __init__(self, max_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._most = HEADS_BYTES + max_bytes
        self._socket: Any = None
        self._asked = False
        self.used = False  # has carried a request
        self._answers = self._answer_bytes = 0

    def begin(self) -> bool:
        """Begin a request; False if this connection must not be used."""
        if not self.is_connected() or self.should_close or (self.used and self._has_bytes()):
            return False
        self._asked = self.used = True
        self._answers = self._answer_bytes = 0
        return True

    def end(self) -> None:
        """End the request: later bytes belong to none."""
        self._asked = False

    def cut(self) -> None:
        if self.transport is not None and self._socket is not None:
            cut(self.transport, self._socket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket: a closed transport no longer gives it."""
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp's own call, when it reads on
            super().data_received(data)
        for at in range(0, len(data), PART_BYTES):
            part = data[at : at + PART_BYTES]
            self._answer_bytes += len(part)
            if self.transport is None:
                return
            if not self._asked or self._answers > MAX_ANSWERS or self._answer_bytes > self._most:
                abort(self.transport, self._socket)  # the reader runs before the loss, and gets the body so far
                return
            super().data_received(part)

    def feed_data(self, data: Any, size: int = 0) -> None:
        self._answers += 1
        super().feed_data(data, size)

    def _has_bytes(self) -> bool:
        """Whether bytes have arrived that the event loop has not read yet."""
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))


class Connector(aiohttp.TCPConnector):
    """Hands out connections without unread bytes, and cuts those whose request was given up."""

    def __init__(self, max_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(Handler, max_bytes, loop=self._loop)  # type: ignore[assignment]

    async def connect(self, req: Any, traces: Any, timeout: aiohttp.ClientTimeout) -> Connection:  # noqa: ASYNC109 - aiohttp's
        """Return a connection without unread bytes: an idle one, or else a new one."""
        while True:
            connection = await super().connect(req, traces, timeout)
            handler = connection.protocol
            assert isinstance(handler, Handler)
            if handler.begin():
                return connection
            connection.close()
            if not handler.used:
                raise aiohttp.ClientConnectorError(
                    req.connection_key, OSError("the server sent bytes before a request")
                )

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        assert isinstance(protocol, Handler)
        protocol.end()
        if should_close:
            protocol.cut()
        super()._release(key, protocol, should_close=should_close)
