"""One connection of apns2's: hyper's, with deadlines, a stream map of its own, and an end that loses nothing.

apns2 builds each request and hyper keeps the streams. What is done here in hyper's place, because there it blocks
for ever, loses results or raises: connecting, writing bodies, GOAWAY, resets, finding what has been answered.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from ssl import SSLWantReadError
from typing import TYPE_CHECKING, Any, Final

import structlog

from notifier.notification.json_values import fields_of
from notifier.providers.answers import word
from notifier.providers.apns.pyapns2.compat import (
    BufferedSocket,
    ConnectionState,
    ErrorCodes,
    H2Configuration,
    H2Connection,
    HTTP20Connection,
    Locked,
    ProtocolError,
    SettingCodes,
    StreamClosedError,
)
from notifier.providers.apns.pyapns2.push import Pusher
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.http2.headers import HeaderEncoder, literal, repeated
from notifier.providers.transport.http2.reads import SILENCE_S
from notifier.providers.transport.http2.requests import (
    MAX_STREAMS,
    MAX_UNANSWERED,
    RESPONSE_BYTES,
    STATUS_DIGITS,
    Response,
    Result,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from notifier.providers.apns.pyapns2.requests import Request

HIGHEST_STREAM_ID: Final = 2**31 - 1
# What differs from request to request, or must not be remembered on the way, stays out of the compression table.
VARYING: Final = frozenset({":path", "authorization", "apns-id", "apns-expiration", "apns-collapse-id"})


class _H2(H2Connection):
    """h2, but what hyper would take for the end of everything (GOAWAY) or forget (the reason of a reset) is noted."""

    def __init__(self) -> None:
        super().__init__(
            config=H2Configuration(client_side=True, header_encoding=None, validate_outbound_headers=False)
        )
        self.encoder = HeaderEncoder()
        self.last_stream_id: int | None = None  # of a GOAWAY
        self.resets: dict[int, int] = {}
        self.pongs: list[bytes] = []

    def _receive_goaway_frame(self, frame: Any) -> Any:
        super()._receive_goaway_frame(frame)
        self.state_machine.state = ConnectionState.CLIENT_OPEN  # the streams up to the last one go on
        self.last_stream_id = frame.last_stream_id
        reason = word(fields_of(frame.additional_data or b"").get("reason"))
        structlog.get_logger(__name__).info("goaway", code=frame.error_code, reason=reason)
        return [], []

    def _receive_ping_frame(self, frame: Any) -> Any:
        if "ACK" in frame.flags:
            self.pongs.append(frame.opaque_data)
        return super()._receive_ping_frame(frame)

    def _receive_rst_stream_frame(self, frame: Any) -> Any:
        self.resets[frame.stream_id] = frame.error_code
        try:
            return super()._receive_rst_stream_frame(frame)
        except StreamClosedError:  # RFC 9113, 8.1: a server that has answered may reset; here it ended the connection
            return [], []


class Connection(HTTP20Connection):
    """Belongs to one thread. Its methods wait for the network `timeout_s` at most; what they raise is its end."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(host, port, secure=True, ssl_context=tls)
        self._conn = Locked(_H2())
        self._timeout_s = timeout_s
        self._client = Pusher(self)
        self._more: Mapping[str, str] = {}
        self._authority = ""
        self.open: dict[int, Request] = {}
        self.asked: dict[bytes, tuple[Request, float]] = {}  # given up: by what PING, and until when, it tells of them
        self._blocked: dict[int, Request] = {}  # bodies that wait for a window
        self.retired = False  # takes no more requests
        self.answered = False
        self._unanswered = 0  # requests, one after the other
        self.failure: Exception | None = None  # how reading from it ended
        self._greeted = False  # the server's settings are known
        self.recent_recv_streams: set[int] = set()  # hyper adds those that something came for
        self.heard_at = 0.0  # on the monotonic clock, in seconds

    @property
    def h2(self) -> _H2:
        """The state of the protocol; hyper's lock around it is for other threads, of which there are none."""
        with self._conn as state:
            assert isinstance(state, _H2)
            return state

    def connect(self) -> None:
        """Connect and greet the server. Raises OSError, and ProtocolError for a server that has no HTTP/2."""
        until = time.monotonic() + self._timeout_s
        plain = socket.create_connection((self.host, self.port), timeout=self._timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(max(until - time.monotonic(), 0.001))
            secure = self.ssl_context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        self._sock = BufferedSocket(secure, self.network_buffer_size)
        if secure.selected_alpn_protocol() != "h2":
            raise ProtocolError("the server does not speak HTTP/2")
        secure.settimeout(0)
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.ENABLE_PUSH: 0})
        self.flush()
        self.heard_at = time.monotonic()

    def fileno(self) -> int:
        """The socket's, to wait on."""
        number: int = self._sock.fileno()
        return number

    def admits(self, request: Request) -> bool:
        """Whether this request may be begun now: a stream is free, and the window has room for the body."""
        if self.retired or self._blocked:
            return False
        if not self.open:
            return True  # on an idle connection the window may never become wider
        if not self._greeted:
            return False  # until the server's settings say otherwise, it admits one stream
        limit = min(self.h2.remote_settings.max_concurrent_streams, MAX_STREAMS)
        return len(self.open) < limit and self.h2.outbound_flow_control_window >= len(request.body)

    def start(self, request: Request) -> None:
        """Begin a request; `flush` sends it."""
        request.stream_id = self.next_stream_id
        self.open[request.stream_id] = request
        self._client.push(request)
        request.stream = self.streams[request.stream_id]
        self._send_body(request)
        if self.next_stream_id > HIGHEST_STREAM_ID:
            self.retired = True

    def request(self, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> int:  # noqa: ARG002 - apns2's call; the body follows as the windows admit it
        """Open a stream with the headers that apns2 made, and those it does not know."""
        stream = self._new_stream()
        pseudo = {":method": method, ":scheme": "https", ":authority": self._authority, ":path": url}
        self.h2.send_headers(
            stream.stream_id,
            [
                (literal if name in VARYING else repeated)(name.encode(), value.encode())
                for name, value in {**pseudo, **(headers or {}), **self._more}.items()
            ],
        )
        return int(stream.stream_id)

    def add(self, authority: str, headers: Mapping[str, str]) -> None:
        """Give the next request this authority, and headers that apns2 has no argument for."""
        self._authority, self._more = authority, headers

    def flush(self) -> None:
        """Hand everything to the socket."""
        self._send_outstanding_data(send_empty=False)

    def _send_cb(self, data: bytes, tolerate_peer_gone: bool = False) -> None:
        # Reading never waits: TLS may have nothing for us in what made the socket readable. Writing waits its turn.
        self._sock.settimeout(self._timeout_s)
        super()._send_cb(data, tolerate_peer_gone)
        self._sock.settimeout(0)

    def ping_server(self) -> None:
        """Ask whether it is still there; `flush` sends it."""
        self.h2.ping(b"notifier")

    def receive(self) -> list[tuple[Request, Result | bool]]:
        """Read what has come; the requests that it answers or ends, and how, or has read. See `failure` then."""
        try:
            self._single_read()
            while self._sock.pending():  # decrypted already: the socket would not say that there is more
                self._single_read()
        except SSLWantReadError:
            pass  # a part of a record, or one that is TLS's own
        except Exception as error:  # noqa: BLE001 - what had come before it counts
            self.failure = error
        else:
            self._greeted = True
            self.heard_at = time.monotonic()
        resets, self.h2.resets = self.h2.resets, {}
        touched, self.recent_recv_streams = self.recent_recv_streams | resets.keys(), set()
        results = {i: self._result(i, resets.get(i)) for i in touched & self.open.keys()}
        if (last := self.h2.last_stream_id) is not None:
            self.retired = True
            # RFC 9113, 6.8: above the last stream nothing was or will be processed.
            unsent = Answer(Outcome.UNSENT, reason="GoAway")
            results |= {i: request.response or unsent for i, request in self.open.items() if i > last}
        ended: list[tuple[Request, Result | bool]]
        ended = [(self._close(i), result) for i, result in results.items() if result is not None]
        pongs, self.h2.pongs = self.h2.pongs, []
        while self.asked.keys() & pongs:  # frames are read in order, so one tells of those before it as well
            ended.append((self.asked.pop(next(iter(self.asked)))[0], True))
        for stream_id, request in list(self._blocked.items()):
            if time.monotonic() >= request.send_by_s:
                ended.append((self._close(stream_id), request.lost("TooLate")))
            else:
                self._send_body(request)
        return ended

    def drop(self, request: Request, *, timed_out: bool) -> None:
        """End the stream of a request that nobody waits for any longer."""
        if self.open.get(request.stream_id) is not request:
            return
        if request.passed is not None:
            payload = request.stream_id.to_bytes(8)
            self.asked[payload] = (request, time.monotonic() + SILENCE_S)
            self.h2.ping(payload)
        self._close(request.stream_id)
        self._reset(request.stream_id)
        self._unanswered += timed_out
        if timed_out and (self.heard_at < request.begun_at or self._unanswered >= MAX_UNANSWERED):
            # Not a word until the timeout, or words that are no answers: what waits shall not run into the same.
            self.retired = True

    def abort(self) -> None:
        """Break the connection; the one method for other threads."""
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):
                # Not the TLS socket's own shutdown, which takes away what the owning thread is reading with.
                socket.socket.shutdown(sock._sck, socket.SHUT_RDWR)  # noqa: SLF001

    @property
    def silent_at(self) -> float:
        """Until when it may show that it has read what was given up."""
        return next((until for _, until in self.asked.values()), math.inf)

    def hang_up(self) -> list[tuple[Request, Result | bool]]:
        """Close, in any state; what becomes of the requests that are left."""
        left: list[tuple[Request, Result | bool]] = [(each, False) for each, _ in self.asked.values()]
        left += [(each, each.lost("ConnectionLost")) for each in self.open.values()]
        self.open, self.asked = {}, {}
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        return left

    def _result(self, stream_id: int, reset: int | None) -> Result | None:
        request = self.open[stream_id]
        stream = request.stream
        if stream.response_headers is not None:
            headers = {name.lower(): value for name, value in stream.response_headers.items()}
            status = headers.get(b":status", b"")
            self.answered, self._unanswered = True, 0
            request.response = Response(
                int(status) if status.isdigit() and len(status) == STATUS_DIGITS else 0,
                headers,
                b"".join(stream.data)[:RESPONSE_BYTES],
            )
        elif reset == ErrorCodes.REFUSED_STREAM:
            return Answer(Outcome.UNSENT, reason="RefusedStream")
        if reset is not None:
            return request.lost("StreamReset")
        return request.response if stream.remote_closed else None

    def _close(self, stream_id: int) -> Request:
        self._stream_close_cb(stream_id)
        if self._blocked.pop(stream_id, None):
            self._reset(stream_id)  # answered before all was sent: nobody wants the rest
        return self.open.pop(stream_id)

    def _reset(self, stream_id: int) -> None:
        with contextlib.suppress(ProtocolError):  # it is closed already
            self.h2.reset_stream(stream_id, ErrorCodes.CANCEL)

    def _send_body(self, request: Request) -> None:
        body, stream_id, state = request.body, request.stream_id, self.h2
        while request.sent < len(body):
            room = min(state.local_flow_control_window(stream_id), state.max_outbound_frame_size)
            if room <= 0:
                self._blocked[stream_id] = request
                return
            part = body[request.sent : request.sent + room]
            request.sent += len(part)
            state.send_data(stream_id, part, end_stream=request.sent == len(body))
        self._blocked.pop(stream_id, None)
