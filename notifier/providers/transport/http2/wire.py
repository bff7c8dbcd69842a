"""HTTP/2 on one TLS connection, as plain calls: h2, its buffers and its keep-alive."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

import structlog
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from hpack import HeaderTuple

from notifier.notification.json_values import fields_of
from notifier.providers.answers import word
from notifier.providers.transport.cut import cut
from notifier.providers.transport.http2.credit import Credit
from notifier.providers.transport.http2.reads import Reads

try:
    from notifier.providers.transport.http2.lean import LeanH2
except ImportError:  # beside apns2, h2 is of 2017
    from notifier.providers.transport.http2.plain import PlainH2 as LeanH2  # type: ignore[assignment]

HIGHEST_STREAM_ID: Final = 2**31 - 1
IDLE_S: Final = 60.0  # after this silence, a PING asks whether the connection still lives
DOUBT_S: Final = 10.0  # after this silence, a PING is answered before an idle connection gets a request
DOUBT_TIMEOUT_S: Final = 1.0
GOAWAY_CHARACTERS: Final = 200
SAID_FOR_S: Final = 60.0  # within this time, the same event is logged for debugging only


class Said:
    """The events logged lately of one server: a server that breaks every connection must not fill the log."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def again(self, event: str, now: float) -> bool:
        """Whether this event was logged within the last minute."""
        again = now < self._until.get(event, 0.0)
        if not again:
            self._until[event] = now + SAID_FOR_S
        return again


class Wire(asyncio.Protocol):
    """A client's end of one connection. A subclass overrides the methods on_… and calls the others."""

    def __init__(self, *, timeout_s: float, said: Said) -> None:
        self.log = structlog.get_logger(__name__)
        self.loop = asyncio.get_running_loop()
        self._said = said
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.why_lost = ""
        self.heard_at = self.loop.time()
        self.may_write = True
        self._timeout_s = timeout_s
        self._h2 = LeanH2()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._next_id = 1
        self._pinged = self._asked_in_doubt = False
        self._keep_alive: asyncio.TimerHandle | None = None
        self.reads = Reads(self._send_ping, self.abort)
        self._credit = Credit(self.heard_at)
        self._behind = False  # received frames are left for another turn of the loop
        self._leaving = self._lost = False

    # For a subclass to override.

    def on_settings(self, max_streams: int) -> None:
        """Take note of how many streams the server admits at once."""

    def on_headers(self, stream_id: int, headers: dict[bytes, bytes]) -> None:
        """Take a response's headers."""

    def on_data(self, stream_id: int, data: bytes) -> None:
        """Take a part of a response's body."""

    def on_end_of_stream(self, stream_id: int) -> None:
        """Take a response as complete."""

    def on_reset(self, stream_id: int, *, refused: bool) -> None:
        """Give up a stream; refused says that the server did nothing with it."""

    def on_goaway(self, last_stream_id: int, code: int, reason: str) -> None:
        """Give up the streams above the last one and open no more."""

    def on_ready(self) -> None:
        """Send the requests that windows, limits and the socket may now admit, and flush."""

    def on_lost(self) -> None:
        """Give up all streams."""

    # For a subclass and the channel to call.

    @property
    def protocol(self) -> str | None:
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        return cast("str | None", tls.selected_alpn_protocol())

    @property
    def open(self) -> bool:
        if self._transport is None or self._leaving:
            return False
        return self._h2.state_machine.state is not ConnectionState.CLOSED

    @property
    def window(self) -> int:
        """How many bytes of bodies the connection takes now, over all streams."""
        return self._h2.outbound_flow_control_window

    @property
    def used_up(self) -> bool:
        """Whether no stream can be opened any more."""
        return self._next_id > HIGHEST_STREAM_ID

    def sure(self) -> bool:
        """Whether the server has sent a frame lately. If not, it gets a PING; then comes `on_ready`, or the end."""
        if self.loop.time() - self.heard_at < DOUBT_S:
            return True
        if not self._asked_in_doubt:
            # A half-dead socket accepts every write. Afterwards nobody could say what became of the requests.
            self._asked_in_doubt = True
            self._ping(min(DOUBT_TIMEOUT_S, self._timeout_s / 4))
        return False

    def has_read(self, sent_at: float) -> asyncio.Future[bool] | None:
        """Ask whether the server has read the data sent at this time; None if the connection is not open."""
        return self.reads.of(sent_at) if self.open else None

    def open_stream(self, headers: list[HeaderTuple]) -> int:
        stream_id = self._next_id
        self._next_id += 2
        self._h2.open_request(stream_id, headers)
        self._credit.add_request()
        return stream_id

    def send_body(self, stream_id: int, body: bytes, sent: int) -> int:
        """Send as much of body[sent:] as the windows admit. Returns how much of the body has been sent in all."""
        size = len(body)
        if not size:
            self._h2.send_part(stream_id, b"", last=True)
        while sent < size:
            room = self._h2.room(stream_id)
            if room <= 0:
                break
            part = body[sent : sent + room] if sent or size > room else body
            sent += len(part)
            self._h2.send_part(stream_id, part, last=sent == size)
        return sent

    def reset_stream(self, stream_id: int) -> None:
        """Tell the server that nobody waits for this stream, unless it is closed already."""
        try:
            self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        except H2Error:
            return

    def flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def hang_up(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.open:
            self._h2.close_connection()
            self.flush()
        self._leaving = True
        self._transport.close()

    def abort(self) -> None:
        self._leaving = True
        if self._transport is not None and self._socket is not None:
            cut(self._transport, self._socket)

    def say(self, event: str, *, level: str = "info", **fields: object) -> None:
        """Log an event of the server, once a minute; its repeats for debugging only."""
        getattr(self.log, "debug" if self._said.again(event, self.loop.time()) else level)(event, **fields)

    # For the event loop to call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface. If the server did not choose HTTP/2, the channel ends the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.protocol == "h2":
            self._h2.initiate_connection()
            self.flush()
            self._keep_alive = self.loop.call_later(IDLE_S, self._check_alive)

    def data_received(self, data: bytes) -> None:
        if not self.open:
            return
        self.heard_at = self.loop.time()
        self._pinged = self._asked_in_doubt = False
        self._h2.feed(data)
        if not self._behind:
            self._read()

    def _read(self) -> None:
        """Handle frames for one turn of the loop. While some are left, nothing more is read from the socket."""
        assert self._transport is not None
        behind, self._behind = self._behind, False
        try:
            self._read_frames()
        except H2Error as error:
            self._break_off("http2_protocol_error", error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever error a server's bytes cause, it ends this connection only
            self._break_off("http2_broke", level="error", exc_info=error)
        if not self.open or self._lost:
            return
        if self._behind:
            self._transport.pause_reading()
            self.loop.call_soon(self._read_on)
        elif behind:
            self._transport.resume_reading()
        self.on_ready()

    def _read_on(self) -> None:
        if self.open and self._behind:
            self._read()

    def _read_frames(self) -> None:
        # A server that does not read our acknowledgements, which then wait here, earns no credits.
        self._credit.begin_turn(self.loop.time(), earns=self.may_write)
        while self.open and (events := self._h2.next_frame()) is not None:
            self._credit.charge(events)
            for event in events:
                self._hand_on(event)
            if self._credit.used_up:
                self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                self._break_off("http2_flood")
            elif self._credit.turn_is_over:
                self._behind = True
                return

    def _break_off(self, event: str, *, level: str = "warning", **fields: object) -> None:
        self.say(event, level=level, **fields)
        self.flush()
        self._leaving = True
        assert self._transport is not None
        self._transport.abort()  # the last frame may still leave

    def pause_writing(self) -> None:
        """Start nothing more: the socket is full."""
        self.may_write = False

    def resume_writing(self) -> None:
        self.may_write = True
        self.on_ready()

    def connection_lost(self, exc: Exception | None) -> None:
        """Call `on_lost`, then resolve `ended`."""
        if exc is not None and not self._leaving:
            self.why_lost = self.why_lost or str(exc)
            self.say("connection_lost", error=type(exc).__name__, why=self.why_lost)
        if self._keep_alive:
            self._keep_alive.cancel()
        self._lost = True
        try:
            while self._behind and self.open:  # answers that came before the end count
                self._read()
            self.reads.end()
            self.on_lost()
        finally:
            self.ended.set_result(None)

    def _hand_on(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                self.on_headers(event.stream_id, _read_headers(event.headers))
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.on_data(event.stream_id, event.data)
            case StreamEnded():
                self.on_end_of_stream(event.stream_id)
            case StreamReset():
                self.on_reset(event.stream_id, refused=event.error_code == ErrorCodes.REFUSED_STREAM)
            case RemoteSettingsChanged():
                self.on_settings(self._h2.remote_settings.max_concurrent_streams)
            case ConnectionTerminated():
                data = event.additional_data or b""  # Apple's {"reason": …}; of any other server, its text
                reason = word(fields_of(data).get("reason")) or data[:GOAWAY_CHARACTERS].decode("utf-8", "replace")
                self.on_goaway(event.last_stream_id or 0, int(event.error_code or 0), reason)
            case PingAckReceived():
                self._pinged = False
                self.reads.answered(event.ping_data or b"")

    def _send_ping(self, payload: bytes) -> None:
        self._h2.ping(payload)
        self.flush()

    def _check_alive(self) -> None:
        if self._pinged:
            self.say("connection_dead", idle_s=round(self.loop.time() - self.heard_at))
            self.abort()
            return
        wait_s = self.heard_at + IDLE_S - self.loop.time()
        if wait_s <= 0:
            self._ping(self._timeout_s)
        else:
            self._keep_alive = self.loop.call_later(wait_s, self._check_alive)

    def _ping(self, timeout_s: float) -> None:
        self._send_ping(b"notifier")
        self._pinged = True
        if self._keep_alive:
            self._keep_alive.cancel()
        self._keep_alive = self.loop.call_later(timeout_s, self._check_alive)


def _read_headers(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the last value of each name. If there are several statuses, none counts."""
    headers = dict(fields)
    if len(headers) < len(fields) and sum(name == b":status" for name, _ in fields) > 1:
        headers[b":status"] = b""
    return headers
