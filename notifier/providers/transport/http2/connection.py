"""Many requests at once over one HTTP/2 connection, each with exactly one result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.backoff import ENOUGH_S
from notifier.providers.transport.http2.requests import MAX_STREAMS, MAX_UNANSWERED, Request, Waiting
from notifier.providers.transport.http2.wire import Said, Wire

LATE_S: Final = 0.25  # allowed after `send_by`: the lease ends long after it, though an expiry may have passed
SHARE_A_WRITE: Final = 32  # requests: with more, the server waits for the last of them; fewer cost more writes


class Connection(Wire):
    """Takes requests from `waiting` as soon as the server's stream limit and windows admit them.

    on_retire is called once, when the connection takes no more requests.
    """

    def __init__(
        self,
        waiting: Waiting,
        *,
        timeout_s: float,
        on_retire: Callable[[Connection], None],
        said: Said,
    ) -> None:
        super().__init__(timeout_s=timeout_s, said=said)
        self.answered = False
        self.retired = False
        self.finishing = False  # retired by a GOAWAY without an error, with streams that the server still answers
        self._waiting = waiting
        self._on_retire = on_retire
        self._streams: dict[int, Request] = {}
        self._blocked: dict[int, Request] = {}  # bodies that wait for a window
        self._limit = 1  # until the server's SETTINGS say more
        self._unanswered = 0  # requests in a row
        self._said_goaway = False
        self._woken = False

    # What the channel calls.

    def wake(self) -> None:
        """Send from `waiting` once all ready callbacks have run, or enough requests wait: then they share a write."""
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self.on_ready)
        elif len(self._waiting) >= SHARE_A_WRITE:
            self.on_ready()

    def give_up(self, request: Request, reason: str) -> None:
        """Reset the stream of a request that nobody waits for any longer."""
        request.lose(reason, self.has_read(request.started_at) if request.complete else None)
        if self._streams.pop(request.stream_id, None) is None:
            return
        self._blocked.pop(request.stream_id, None)
        self.reset_stream(request.stream_id)
        if reason == "TooLate":  # its body waited for a window until its time was up
            self.note_starved(request.started_at)
        elif self.heard_at < request.started_at:
            # The server was silent for a whole timeout: waiting requests must not run into the same silence.
            self._retire()
        else:
            self.note_unanswered()
        self.wake()

    @property
    def is_shut(self) -> bool:
        """Whether the server itself admits nothing: it opens no stream, or a body waits for a window."""
        return not self._streams or bool(self._blocked)

    def note_starved(self, since: float) -> None:
        """Note a request that had no window, or no stream, from `since` until it was too late to send it."""
        if self.loop.time() - since >= min(self._timeout_s / 2, ENOUGH_S):
            self.note_unanswered()

    def note_unanswered(self) -> None:
        """Note a request that had no answer in time, or not even a stream; after MAX_UNANSWERED in a row, retire.

        A server that sends frames but no answers, windows or streams may do better on a new connection.
        """
        self._unanswered += 1
        if self._unanswered >= MAX_UNANSWERED:
            self._retire()

    def close(self) -> None:
        """Send GOAWAY and close; requests under way become UNKNOWN."""
        self._lose_all("Closed")
        self.reads.end()
        self._retire()

    # What goes out.

    def on_ready(self) -> None:
        """Send the requests that may go, in order, in one write."""
        self._woken = False
        if not self.open:
            return
        began, latest = self.loop.time(), math.inf
        for request in list(self._blocked.values()):
            if self.loop.time() < request.send_by:  # else its timer, which is due, gives it up
                self._send_body(request)
                latest = min(latest, request.send_by)
        waiting = self._waiting
        if waiting and not self._streams and not self.sure():
            return
        while waiting and self._admits(next(iter(waiting))):
            request, _ = waiting.popitem(last=False)
            if self.loop.time() >= request.send_by:
                request.lose("TooLate")
            elif not request.result.done():
                self._start(request)
                latest = min(latest, request.send_by)
        if self.loop.time() >= latest + LATE_S:
            self._keep_back(began)
            return
        self.flush()
        self._hang_up_if_done()

    def _keep_back(self, began: float) -> None:
        """Cut the connection: the process stood still since `began`, and the frames to write now would come too late.

        The results of the connection's other requests become unknown, so this is the last resort.
        """
        for request in [each for each in self._streams.values() if each.started_at >= began]:
            request.resolve(Answer(Outcome.UNSENT, reason="TooLate"))
            self._forget(request)
        self.abort()

    def _admits(self, request: Request) -> bool:
        if self.retired or not self.may_write or self._blocked or len(self._streams) >= self._limit:
            return False
        # A body that must wait for the connection's window waits better in the queue. Except on an idle
        # connection, whose window may never grow.
        return self.window >= len(request.body) or not self._streams

    def _start(self, request: Request) -> None:
        request.give_up = self.give_up
        request.started_at = self.loop.time()
        request.deadline = request.started_at + self._timeout_s
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
        self._limit = min(max_streams, MAX_STREAMS)

    def on_headers(self, stream_id: int, headers: dict[bytes, bytes]) -> None:
        if request := self._streams.get(stream_id):
            request.response_headers = headers

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Keep a response's body up to `max_response` bytes; a longer one is taken as complete."""
        request = self._streams.get(stream_id)
        if request is None:
            return
        request.received += data[: request.max_response - len(request.received)]
        if len(request.received) == request.max_response:
            self._answer(request)
            self.reset_stream(stream_id)

    def on_end_of_stream(self, stream_id: int) -> None:
        if request := self._streams.get(stream_id):
            blocked = stream_id in self._blocked
            self._answer(request)
            if blocked:
                self.reset_stream(stream_id)  # answered before the whole body was sent: the rest is not needed

    def on_reset(self, stream_id: int, *, refused: bool) -> None:
        if request := self._streams.get(stream_id):
            self._lose(request, "StreamReset", unsent="RefusedStream" if refused else "")

    def on_goaway(self, last_stream_id: int, code: int, reason: str) -> None:
        if not self._said_goaway:
            self._said_goaway = True
            self.say("goaway", code=code, reason=reason, in_flight=len(self._streams))
        for stream_id in [i for i in self._streams if i > last_stream_id]:
            self.reset_stream(stream_id)
            # RFC 9113, 6.8: above the last stream nothing was or will be processed.
            self._lose(self._streams[stream_id], "GoAway", unsent="GoAway")
        self.why_lost = reason
        self.finishing = code == 0 and bool(self._streams)
        self._retire()

    # A request is resolved before it is forgotten: if that raises, the end of the connection resolves it.

    def _answer(self, request: Request) -> None:
        self.answered = True
        self._unanswered = 0
        request.respond()
        self._forget(request)

    def _lose(self, request: Request, reason: str, *, unsent: str = "") -> None:
        if unsent and not request.response_headers:
            request.resolve(Answer(Outcome.UNSENT, reason=unsent))
        else:
            request.lose(reason)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        del self._streams[request.stream_id]
        self._blocked.pop(request.stream_id, None)

    # How it ends.

    def on_lost(self) -> None:
        self._lose_all("ConnectionLost")
        self._retire()

    def _lose_all(self, reason: str) -> None:
        streams, self._streams = self._streams, {}
        self._blocked.clear()
        for request in streams.values():
            request.lose(reason)

    def _retire(self) -> None:
        if not self.retired:
            self.retired = True
            self._on_retire(self)
        self._hang_up_if_done()

    def _hang_up_if_done(self) -> None:
        if self.retired and not self._streams and not self.reads.waiting:
            self.hang_up()
