"""Many requests at once over one HTTP/2 connection, each with exactly one result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from notifier.providers.contract import Answer, Outcome
from notifier.providers.http2.requests import Request, Response, Waiting
from notifier.providers.http2.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STREAMS: Final = 1000  # of our own, for a server that names no limit
RESPONSE_BYTES: Final = 16_384  # more of an error page is not kept
SHARE_A_WRITE: Final = 32  # requests: more would have the server wait for the last of them, fewer cost more writes


class Connection(Wire):
    """Takes requests from `waiting` as soon as the server's stream limit and windows admit them.

    on_retire is called once, when it takes no more requests; on_end once, when it is closed.
    """

    def __init__(
        self,
        waiting: Waiting,
        *,
        ping_timeout_s: float,
        on_retire: Callable[[Connection], None],
        on_end: Callable[[Connection], None],
    ) -> None:
        super().__init__(ping_timeout_s=ping_timeout_s)
        self.answered = False
        self.retired = False
        self._waiting = waiting
        self._on_retire = on_retire
        self._on_end = on_end
        self._streams: dict[int, Request] = {}
        self._blocked: dict[int, Request] = {}  # bodies that wait for a window
        self._limit = 1  # until the server's SETTINGS say more
        self._woken = False

    # What the channel calls.

    def wake(self) -> None:
        """Look at `waiting` once all callbacks that are ready have run or queued enough, so that they share a write."""
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self.on_ready)
        elif len(self._waiting) >= SHARE_A_WRITE:
            self.on_ready()

    def give_up(self, request: Request, reason: str) -> None:
        """Reset the stream of a request that nobody waits for any longer."""
        if self._streams.pop(request.stream_id, None) is None:
            return
        self._blocked.pop(request.stream_id, None)
        self.reset_stream(request.stream_id)
        request.lose(reason)
        if self.heard_at < request.started_at:
            # Not a word for a whole timeout: what waits shall not run into the same silence.
            self._retire()
        self.wake()

    def close(self) -> None:
        """Say goodbye; requests under way become UNKNOWN."""
        self._lose_all("Closed")
        self._retire()

    # What goes out.

    def on_ready(self) -> None:
        """Send what may go, in order, and write once."""
        self._woken = False
        if not self.open:
            return
        for request in list(self._blocked.values()):
            self._send_body(request)
        waiting = self._waiting
        if waiting and not self._streams and not self.sure():
            return
        while waiting and self._admits(next(iter(waiting))):
            request, _ = waiting.popitem(last=False)
            if self.loop.time() >= request.send_by:
                request.lose("TooLate")
            elif not request.result.done():
                self._start(request)
        self.flush()
        if self.retired and not self._streams:
            self.hang_up()

    def _admits(self, request: Request) -> bool:
        if self.retired or not self.may_write or self._blocked or len(self._streams) >= self._limit:
            return False
        # A body that must wait for the connection's window waits better in the queue. Except on an idle
        # connection, whose window may never become wider.
        return self.window >= len(request.body) or not self._streams

    def _start(self, request: Request) -> None:
        request.connection = self
        request.started_at = self.loop.time()
        request.stream_id = stream_id = self.open_stream(request.headers)
        self._streams[stream_id] = request
        self._send_body(request)
        if self.used_up:
            self._retire()

    def _send_body(self, request: Request) -> None:
        request.sent = self.send_body(request.stream_id, request.body, request.sent)
        if request.sent < len(request.body):
            self._blocked[request.stream_id] = request
        else:
            self._blocked.pop(request.stream_id, None)

    # What comes in.

    def on_settings(self, max_streams: int) -> None:
        """Obey the server's limit from now on."""
        self._limit = min(max_streams, MAX_STREAMS)

    def on_headers(self, stream_id: int, headers: dict[bytes, bytes]) -> None:
        """Keep a response's headers."""
        if request := self._streams.get(stream_id):
            request.response_headers = headers

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Keep a response's body, within reason."""
        request = self._streams.get(stream_id)
        if request and len(request.received) < RESPONSE_BYTES:
            request.received += data

    def on_end_of_stream(self, stream_id: int) -> None:
        """Resolve a request with its response."""
        request = self._streams.pop(stream_id, None)
        if request is None:
            return
        if self._blocked.pop(stream_id, None):
            self.reset_stream(stream_id)  # answered before all was sent: nobody wants the rest
        self.answered = True
        status = request.response_headers.get(b":status", b"")
        code = int(status) if status.isdigit() else 0
        request.resolve(Response(code, request.response_headers, request.received))

    def on_reset(self, stream_id: int, *, refused: bool) -> None:
        """Resolve a request whose stream the server cut off."""
        self._blocked.pop(stream_id, None)
        request = self._streams.pop(stream_id, None)
        if request is None:
            return
        if refused:
            request.resolve(Answer(Outcome.UNSENT, reason="RefusedStream"))
        else:
            request.lose("StreamReset")

    def on_goaway(self, last_stream_id: int, code: int, reason: str) -> None:
        """Resolve what the server will not process, and let the rest finish."""
        self.log.info("goaway", code=code, reason=reason, in_flight=len(self._streams))
        for stream_id in [i for i in self._streams if i > last_stream_id]:
            self._blocked.pop(stream_id, None)
            self.reset_stream(stream_id)
            # RFC 9113, 6.8: above the last stream nothing was or will be processed.
            self._streams.pop(stream_id).resolve(Answer(Outcome.UNSENT, reason="GoAway"))
        self._retire()

    # How it ends.

    def on_lost(self) -> None:
        """Resolve everything that was under way."""
        self._lose_all("ConnectionLost")
        self._retire()
        self._on_end(self)

    def _lose_all(self, reason: str) -> None:
        streams, self._streams = self._streams, {}
        self._blocked.clear()
        for request in streams.values():
            request.lose(reason)

    def _retire(self) -> None:
        if not self.retired:
            self.retired = True
            self._on_retire(self)
        if not self._streams:
            self.hang_up()
