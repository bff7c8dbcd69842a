"""The common part of simulators that speak HTTP/2: connections, strictness, and the faults of HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import structlog
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RequestReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error, StreamClosedError
from h2.settings import SettingCodes, Settings

from notifier.providers.transport.http2.headers import HeaderEncoder, literal, repeated
from notifier.simulators.checks.apns import Verdict
from notifier.simulators.simulator import HOST, Simulator, stop_accepting
from notifier.simulators.wire import Reply

BODY_BYTES: Final = 65_536  # the rest of a body is not kept: the checks refuse a body of this size
SWEEP_EVERY: Final = 128
H2_CHECKS: Final = ("validate_inbound", "normalize_inbound", "validate_outbound", "normalize_outbound")
TOKEN_REFUSED: Final = frozenset({"MissingProviderToken", "InvalidProviderToken", "ExpiredProviderToken"})


class _H2(H2Connection):
    """h2 without its count of the open streams at each request: `Connection` counts them."""

    def __init__(self) -> None:
        config = H2Configuration(client_side=False, header_encoding="utf-8")
        # h2's own checks take a quarter of the time. `_malformed` makes the ones that matter here.
        for check in H2_CHECKS:
            setattr(config, f"{check}_headers", False)  # not as arguments: the old h2 that apns2 needs lacks some
        super().__init__(config=config)
        self.encoder = HeaderEncoder()
        self.local_settings = Settings(client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        self._until_sweep = SWEEP_EVERY

    @property
    def open_inbound_streams(self) -> int:
        self._until_sweep -= 1
        if not self._until_sweep:
            self._until_sweep = SWEEP_EVERY
            super().open_inbound_streams  # noqa: B018 - drops the closed streams
        return 0


class _MaxStreams:
    """How many streams a trusted connection may have open. A change is announced on all these connections."""

    def __get__(self, server: Http2Simulator | None, of: type[Http2Simulator]) -> int:
        return 1000 if server is None else int(vars(server)["max_streams"])

    def __set__(self, server: Http2Simulator, value: int) -> None:
        vars(server)["max_streams"] = value
        for connection in server.connections:
            connection.announce_limit()


@dataclass(kw_only=True, eq=False, repr=False)
class Http2Simulator(Simulator):
    """A server over HTTP/2. Counters: connections_opened, streams_refused (over the limit), peak_streams.

    max_streams: how many a connection may have open after a valid provider token; before, and after a refused one, it
    may have one. window_bytes: how much of a body a stream takes before it waits for a window update. window_updates:
    False sends none, so that the connection takes 65,535 bytes in all. by_certificate: every client is trusted from the
    start.
    """

    connections: set[Connection] = field(default_factory=set, init=False)
    connections_opened: int = field(default=0, init=False)
    streams_refused: int = field(default=0, init=False)
    peak_streams: int = field(default=0, init=False)
    max_streams: _MaxStreams = _MaxStreams()
    window_bytes: int = 65_535
    window_updates: bool = True
    by_certificate: bool = field(default=False, init=False)
    _running: asyncio.Server | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tls.set_alpn_protocols(["h2"])

    @abstractmethod
    def receive(self, headers: Mapping[str, str], body: bytes) -> tuple[Reply, Verdict]:
        """Judge and log one complete request; return the reply and the verdict."""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._running = await loop.create_server(lambda: Connection(self), HOST, self.port, ssl=self._tls)

    async def close(self) -> None:
        server, self._running = self._running, None
        if server is not None:
            await stop_accepting(*server.sockets)
            server.close()
            endings = [connection.ended for connection in self.connections]
            self.cut()
            await asyncio.gather(*endings)

    def open_connections(self) -> Iterable[Connection]:
        return self.connections

    def go_away(self, reason: str = "Shutdown", *, last_stream_id: int | None = None, keep: float = 1) -> None:
        """Send GOAWAY on all connections.

        The server still answers the streams up to last_stream_id or, without one, the oldest `keep` share of the open
        streams. It never processes the rest.
        """
        for connection in list(self.connections):
            connection.go_away(reason, connection.oldest(keep) if last_stream_id is None else last_stream_id)


class Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, simulator: Http2Simulator) -> None:
        self._simulator = simulator
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._h2 = _H2()
        self._trusted = simulator.by_certificate
        self._allowed = self._acknowledged = 1
        self._announced: deque[int] = deque()  # the stream limit in each SETTINGS frame not yet acknowledged
        self._last_stream_id = 2**31 - 1
        self._streams: dict[int, tuple[dict[str, str], bytearray]] = {}  # headers and body, until the answer
        self._unsent: dict[int, bytes] = {}  # rests of answers, which wait for a window
        self._flush_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._simulator.connections.add(self)
        self._simulator.connections_opened += 1
        if self._simulator.is_dead(self):
            return
        self._h2.initiate_connection()
        # Not among the first settings: a client may use the default window until it has read ours.
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._simulator.window_bytes})
        self._announced.extend((1, 1))
        self.announce_limit()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._simulator.connections.discard(self)
        self._streams.clear()
        self.ended.set_result(None)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._simulator.is_dead(self) or self._h2.state_machine.state is ConnectionState.CLOSED:
            return
        try:
            for event in self._h2.receive_data(data):
                with contextlib.suppress(StreamClosedError):  # a later frame has reset the stream
                    self._handle(event)
            self._send_bodies()
        except (H2Error, UnicodeDecodeError) as error:
            # A client's mistake ends its own connection and no other.
            structlog.get_logger(__name__).info("bad_client", error=type(error).__name__)
            self._flush()
            self._transport.close()
            return
        self._flush()

    def _handle(self, event: Any) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case DataReceived():
                if self._simulator.window_updates:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                stream = self._streams.get(event.stream_id)
                if stream and len(stream[1]) < BODY_BYTES:
                    stream[1].extend(event.data)
            case StreamEnded():
                self._complete(event.stream_id)
            case StreamReset():
                self._streams.pop(event.stream_id, None)
                self._unsent.pop(event.stream_id, None)
            case SettingsAcknowledged() if self._announced:
                self._acknowledged = self._announced.popleft()
            case ConnectionTerminated():
                self._streams.clear()  # no answer may follow, and the connection may end much later
                self._transport.close()

    def _begin(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        if stream_id > self._last_stream_id:
            return
        # A client may use the old limit until it has read a lower one.
        if len(self._streams) >= max(self._allowed, self._acknowledged):
            self._simulator.streams_refused += 1
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        headers = cast("dict[str, str]", dict(event.headers))
        if len(headers) < len(event.headers) or _malformed(headers):
            self._h2.reset_stream(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        self._streams[stream_id] = (headers, bytearray())
        self._simulator.peak_streams = max(self._simulator.peak_streams, len(self._streams))

    def _complete(self, stream_id: int) -> None:
        if stream_id not in self._streams:
            return
        headers, body = self._streams[stream_id]
        reply, verdict = self._simulator.receive(headers, bytes(body))
        if reply.reason in TOKEN_REFUSED:
            self._trusted = False
        elif verdict.trusted:
            self._trusted = True
        self.announce_limit()
        if reply.go_away:
            self.go_away(reply.go_away, stream_id)
        delay_s = self._simulator.serve(reply.delay_ms)
        if reply.silent:
            return
        if delay_s:
            self._loop.call_later(delay_s, self._answer_late, stream_id, reply, verdict)
        else:
            self._answer(stream_id, reply, verdict)

    def announce_limit(self) -> None:
        allowed = self._simulator.max_streams if self._trusted else 1
        if allowed != self._allowed and self._h2.state_machine.state is not ConnectionState.CLOSED:
            self._allowed = allowed
            self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: allowed})
            self._announced.append(allowed)
            self._flush_soon()

    def _answer_late(self, stream_id: int, reply: Reply, verdict: Verdict) -> None:
        if stream_id not in self._streams:
            return
        self._answer(stream_id, reply, verdict)
        self._send_bodies()
        self._flush_soon()

    def _answer(self, stream_id: int, reply: Reply, verdict: Verdict) -> None:
        if reply.drop:
            self.abort()
            return
        if reply.reset:
            del self._streams[stream_id]
            self._h2.reset_stream(stream_id, ErrorCodes[reply.reset])
            return
        headers = [repeated(b":status", b"%d" % reply.status), literal(verdict.id_header, verdict.id.encode())]
        headers += [literal(name.lower().encode(), value.encode()) for name, value in reply.all_headers().items()]
        body = _body(reply)
        del self._streams[stream_id]
        self._h2.send_headers(stream_id, headers, end_stream=not body)
        if body:
            self._unsent[stream_id] = body

    def _send_bodies(self) -> None:
        for stream_id, body in list(self._unsent.items()):
            sent = 0
            while sent < len(body):
                room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
                if room <= 0:
                    break
                part = body[sent : sent + room]
                sent += len(part)
                self._h2.send_data(stream_id, part, end_stream=sent == len(body))
            del self._unsent[stream_id]
            if sent < len(body):
                self._unsent[stream_id] = body[sent:]

    def oldest(self, share: float) -> int:
        """Return the last stream of the oldest `share` of the open ones; with share 1, the last that has begun."""
        open_ids = sorted(self._streams)
        kept = round(share * len(open_ids))
        if kept == len(open_ids):
            return self._h2.highest_inbound_stream_id
        return max(0, open_ids[kept] - 2)  # 0: not even the first stream

    def go_away(self, reason: str, last_stream_id: int) -> None:
        """Send GOAWAY: the streams above this one are neither processed nor answered."""
        self._last_stream_id = min(last_stream_id, self._last_stream_id)  # the id may not rise again
        for stream_id in [i for i in self._streams if i > self._last_stream_id]:
            del self._streams[stream_id]
        self._h2.close_connection(
            additional_data=json.dumps({"reason": reason}).encode(), last_stream_id=self._last_stream_id
        )
        # After this GOAWAY h2 would refuse to send the answers.
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN
        self._flush()

    def _flush_soon(self) -> None:
        if not self._flush_due:  # all frames of one turn of the event loop share one write
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if (data := self._h2.data_to_send()) and not self._simulator.is_silenced(self):
            self._transport.write(data)


def _malformed(headers: Mapping[str, str]) -> bool:
    """Whether RFC 9113, 8.2.1 calls these headers malformed: a name in capitals, a line break in a value."""
    values = "".join(headers.values())
    return not "".join(headers).islower() or "\r" in values or "\n" in values or "\0" in values


def _body(reply: Reply) -> bytes:
    if reply.body:
        return reply.body.encode()
    if reply.reason.startswith("<"):
        return reply.reason.encode()
    if not reply.reason:
        return b""
    content: dict[str, Any] = {"reason": reply.reason}
    if reply.status == 410:  # noqa: PLR2004
        content["timestamp"] = time.time_ns() // 1_000_000
    return json.dumps(content).encode()
