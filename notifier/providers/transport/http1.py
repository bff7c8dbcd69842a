"""Requests over kept HTTP/1.1 connections: one try each, within a deadline; an error comes back as an answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from yarl import URL

from notifier.errors import SettingsError
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.backoff import ENOUGH_S, Backoff
from notifier.providers.transport.http1_connections import Connector
from notifier.providers.transport.words import origin_words

# Shorter than the four minutes after which Google's front ends close an idle connection.
KEEPALIVE_S: Final = 60.0
# No connection, no free one in time, or a name that no resolver takes: no byte of the request left. After any other
# error it may have reached the server.
NEVER_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    UnicodeError,
)
BODY_BYTES: Final = 16_384  # the most that is read of an answer, which may have no end
# Headers that aiohttp adds to each request and no push service reads: they cost a twentieth of a send.
NOT_ASKED_FOR: Final = ("Accept", "User-Agent")
AS_IT_IS: Final = {"Accept-Encoding": "identity"}  # without it, a server may compress its answer
SERVER_ERROR: Final = 500  # this or more may come from a proxy whose server does not answer
MAX_BACKOFFS: Final = 1000


@dataclass(frozen=True, slots=True)
class Response:
    """A server's answer. headers: by a name in any case. body: at most the first `max_bytes`, as far as they came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Pool:
    """Connections to any number of servers. Each server has its own back-off: one that is down delays no other.

    name: of the platform, for logs. timeout_s: for a connection and for an answer, each, in seconds.
    max_connections: open at once to one server; further requests wait. max_bytes: the most that is read of an answer.
    Lives in one event loop.
    """

    def __init__(
        self, name: str, *, tls: ssl.SSLContext, timeout_s: float, max_connections: int, max_bytes: int = BODY_BYTES
    ) -> None:
        self._name = name
        self.tls = tls
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._max_bytes = max_bytes
        self._backoffs: dict[str, Backoff] = {}  # by origin
        self._session: aiohttp.ClientSession | None = None
        self.ends_with_it: list[Callable[[], None]] = []  # called before the connections close
        self._closed = False
        self._log = structlog.get_logger(__name__)

    def unsent(self, origin: str, send_by: float) -> Answer | None:
        """Return the answer to give at once if no request to this server may begin now; else None."""
        now = asyncio.get_running_loop().time()
        if self._closed or now >= send_by:
            return Answer(Outcome.UNSENT, reason="Closed" if self._closed else "TooLate")
        backoff = self._backoff(origin)
        if wait_us := backoff.left_us(now):
            return Answer(Outcome.UNSENT, reason="Unreachable", retry_after_us=wait_us, seen=backoff.seen)
        return None

    def has_reached(self, origin: str) -> bool:
        return self._backoff(origin).proven

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, origin: str, send_by: float
    ) -> Response | Answer:
        """Send one request. UNSENT or UNKNOWN if no response came.

        origin: the ``https://host[:port]`` of the url. send_by: on the loop's clock, in seconds; see `Dispatch`.
        """
        if refusal := self.unsent(origin, send_by):
            return refusal
        began = asyncio.get_running_loop().time()
        bound_s = min(self._timeout_s, send_by - began)
        # `connect` covers the wait for a free connection and its handshake. So `total`, which bounds an answer that
        # trickles, can only run out once the request is being written. aiohttp rounds timeouts above the threshold up
        # to whole seconds: without a threshold it never does.
        timeout = aiohttp.ClientTimeout(
            total=bound_s + self._timeout_s, connect=bound_s, sock_read=self._timeout_s, ceil_threshold=math.inf
        )
        try:
            async with self._open().post(
                # Not encoded again: a stranger's URL must reach its server unchanged.
                URL(url, encoded=True),
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                response = Response(answer.status, answer.headers, await _beginning(answer.content, self._max_bytes))
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            return self._without_answer(origin, error, began, send_by)
        except asyncio.CancelledError:
            # When the pool closes, aiohttp cancels tasks that wait for a connection. Any other cancellation passes.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                return Answer(Outcome.UNSENT, reason="Closed")
            raise
        if self._backoff(origin).worked(asyncio.get_running_loop().time()):
            self._log.info(f"{self._name}_reachable", origin=origin)
        return response

    async def close(self) -> None:
        """Close the connections; requests under way answer UNKNOWN, or UNSENT if they had not begun."""
        self._closed = True
        for end in self.ends_with_it:
            end()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit over all servers: one that does not answer must not take the others' connections.
            most = self._max_connections
            connector = Connector(
                self._max_bytes, limit=0, limit_per_host=most, keepalive_timeout=KEEPALIVE_S, ssl=self.tls
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=AS_IT_IS,
                skip_auto_headers=NOT_ASKED_FOR,
                auto_decompress=False,  # a few compressed bytes may expand to any size
            )
        return self._session

    def _without_answer(self, origin: str, error: Exception, began: float, send_by: float) -> Answer:
        if not isinstance(error, NEVER_SENT):
            reason = "Timeout" if isinstance(error, TimeoutError) else type(error).__name__
            return Answer(Outcome.UNKNOWN, reason=reason)
        now, backoff = asyncio.get_running_loop().time(), self._backoff(origin)
        enough_s = min(self._timeout_s / 2, ENOUGH_S)
        had_time = send_by - began >= enough_s and not backoff.has_worked_since(began)
        if isinstance(error, aiohttp.ConnectionTimeoutError) and not had_time:
            return Answer(Outcome.UNSENT, reason="TooLate")  # others had all connections; the next try may get one
        if backoff.failed(began, now):
            self._log.warning(f"{self._name}_unreachable", origin=origin, error=type(error).__name__)
        left_us, backoff.seen = backoff.left_us(now) or None, origin_words(error, origin)
        return Answer(Outcome.UNSENT, reason=type(error).__name__, retry_after_us=left_us, seen=backoff.seen)

    def _backoff(self, origin: str) -> Backoff:
        backoff = self._backoffs.get(origin)
        if backoff is None:
            # Strangers may name servers, so their number is bounded.
            if len(self._backoffs) >= MAX_BACKOFFS:
                self._backoffs.clear()
            backoff = self._backoffs[origin] = Backoff()
        return backoff


async def _beginning(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    body = bytearray()
    with contextlib.suppress(aiohttp.ClientError, OSError):  # the status is known, even if the body breaks off
        while len(body) < max_bytes and (part := await content.read(max_bytes - len(body))):
            body += part
    return bytes(body)


async def http1_lives(origin: str, tls: ssl.SSLContext, timeout_s: float) -> bool:
    """Whether a server answers two requests for its root; origin: ``https://host[:port]``. See `Provider.probe`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _answers(origin, tls) and await _answers(origin, tls)
    except (aiohttp.ClientError, OSError, ValueError):  # a TimeoutError is an OSError
        return False


async def _answers(origin: str, tls: ssl.SSLContext) -> bool:
    opened = aiohttp.ClientSession(connector=Connector(0, ssl=tls), max_field_size=BODY_BYTES)
    async with opened as session, session.get(origin, allow_redirects=False) as got:
        got.close()  # the body is not needed
        return got.status < SERVER_ERROR


def tls_context(ca_file: Path | None, key: str) -> ssl.SSLContext:
    """A client's TLS. ca_file: trust these authorities and no others. key: the name of the setting, for the error.

    Raises SettingsError if the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"{key}: cannot use {ca_file}: {error}") from None
