"""An APNs to test with: HTTP/2 over TLS, as strict as Apple's, which logs each message as it arrives."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from notifier.providers.http2_headers import HeaderEncoder, literal, repeated
from notifier.simulators.apns_checks import Checks, Verdict
from notifier.simulators.wire import Arrival, Playback, Reply, Scripts, WireLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from notifier.simulators.certificates import Certificates

HOST: Final = "127.0.0.1"
BODY_BYTES: Final = 65_536  # more of a body is not kept: it is far past what is refused as too large
SWEEP_EVERY: Final = 128


class ApnsSimulator:
    """One APNs-like server. Counters: connections_opened, streams_refused (over the limit), most_streams.

    team_keys: key id to (team id, public key as PEM). latency_ms: waited before each answer. max_streams:
    admitted at once on a connection that has shown a valid token; one until then. window_bytes: how much of a
    body each stream takes before it must wait for a window update. port: 0 takes a free one.
    clock: seconds since 1970, for the age of provider tokens alone. token_update_s: see `Checks`.
    """

    def __init__(
        self,
        *,
        certificates: Certificates,
        log: WireLog,
        topics: set[str],
        team_keys: Mapping[str, tuple[str, str]],
        scripts: Scripts | None = None,
        latency_ms: float = 0,
        max_streams: int = 1000,
        window_bytes: int = 65_535,
        port: int = 0,
        clock: Callable[[], float] = time.time,
        token_update_s: float = 0,
    ) -> None:
        self.connections_opened = 0
        self.streams_refused = 0
        self.most_streams = 0
        self.latency_s = latency_ms / 1000
        self.max_streams = max_streams
        self.window_bytes = window_bytes
        self.connections: set[_Connection] = set()
        self._log = log
        self._checks = Checks(topics=topics, team_keys=team_keys, clock=clock, token_update_s=token_update_s)
        self.playback = Playback({} if scripts is None else scripts)
        self._port = port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificates.cert_file, certificates.key_file)
        self._tls.set_alpn_protocols(["h2"])
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """``https://127.0.0.1:port``, once started."""
        return f"https://{HOST}:{self._port}"

    @property
    def tokens_seen(self) -> int:
        """How many different valid provider tokens were sent with."""
        return self._checks.tokens_seen

    async def start(self) -> None:
        """Listen; raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), HOST, self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
            endings = [connection.ended for connection in self.connections]
            self.cut()
            await asyncio.gather(*endings)
            await self._server.wait_closed()
            self._server = None

    def cut(self) -> None:
        """Cut all connections without a word, as a broken network does."""
        for connection in list(self.connections):
            connection.abort()

    def go_away(self, reason: str = "Shutdown", *, last_stream_id: int | None = None) -> None:
        """Send GOAWAY on all connections; without last_stream_id, all that has begun is finished."""
        for connection in list(self.connections):
            connection.go_away(reason, last_stream_id)

    def receive(self, headers: Mapping[str, str], body: bytes) -> tuple[Reply, Verdict]:
        """Judge and log one complete request; what to answer."""
        at_us = time.time_ns() // 1000
        verdict = self._checks.judge(headers, body)
        reply = Reply(verdict.status, verdict.reason)
        if verdict.status == 200:  # noqa: PLR2004
            reply = self.playback.next(verdict.token) or reply
        aps = verdict.payload.get("aps", {})
        alert = aps.get("alert")
        self._log.record(
            Arrival(
                at_us=at_us,
                platform="apns",
                token=verdict.token,
                status=0 if reply.drop else reply.status,
                reason=reply.reason,
                message_id=verdict.message_id,
                collapse_id=headers.get("apns-collapse-id"),
                data={key: value for key, value in verdict.payload.items() if key != "aps"},
                title=alert.get("title") if isinstance(alert, dict) else alert,
                ttl_us=_ttl_us(headers.get("apns-expiration", ""), at_us),
            )
        )
        return reply, verdict


class _H2(H2Connection):
    """h2, but it does not count the streams at each request: `_Connection` does."""

    def __init__(self) -> None:
        # h2's own checks take a quarter of the time: `_malformed` makes those that matter here.
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding="utf-8",
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
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


class _Connection(asyncio.Protocol):
    def __init__(self, simulator: ApnsSimulator) -> None:
        self._simulator = simulator
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._h2 = _H2()
        self._allowed = 1
        self._last_stream_id = 2**31 - 1
        self._streams: dict[int, tuple[dict[str, str], bytearray]] = {}  # until they are answered
        self._unsent: dict[int, bytes] = {}  # answers that wait for a window
        self._flush_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._simulator.connections.add(self)
        self._simulator.connections_opened += 1
        self._h2.initiate_connection()
        # Not among the first settings: a client may use the default window until it has read ours.
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: self._simulator.window_bytes})
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._simulator.connections.discard(self)
        self._streams.clear()
        self.ended.set_result(None)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._h2.state_machine.state is ConnectionState.CLOSED:
            return
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
            self._send_bodies()
        except (H2Error, UnicodeDecodeError) as error:
            # Whatever a client sends, it ends this connection and no other.
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
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                stream = self._streams.get(event.stream_id)
                if stream and len(stream[1]) < BODY_BYTES:
                    stream[1].extend(event.data)
            case StreamEnded():
                self._complete(event.stream_id)
            case StreamReset():
                self._streams.pop(event.stream_id, None)
                self._unsent.pop(event.stream_id, None)
            case ConnectionTerminated():
                self._transport.close()

    def _begin(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        if stream_id > self._last_stream_id:
            return
        if len(self._streams) >= self._allowed:
            self._simulator.streams_refused += 1
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        headers = cast("dict[str, str]", dict(event.headers))
        if len(headers) < len(event.headers) or _malformed(headers):
            self._h2.reset_stream(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        self._streams[stream_id] = (headers, bytearray())
        self._simulator.most_streams = max(self._simulator.most_streams, len(self._streams))

    def _complete(self, stream_id: int) -> None:
        if stream_id not in self._streams:
            return
        headers, body = self._streams[stream_id]
        reply, verdict = self._simulator.receive(headers, bytes(body))
        if verdict.trusted and self._allowed != self._simulator.max_streams:
            self._allowed = self._simulator.max_streams
            self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: self._allowed})
        delay_s = self._simulator.latency_s + reply.delay_ms / 1000
        if delay_s:
            self._loop.call_later(delay_s, self._answer_late, stream_id, reply, verdict.message_id)
        else:
            self._answer(stream_id, reply, verdict.message_id)

    def _answer_late(self, stream_id: int, reply: Reply, message_id: str) -> None:
        if stream_id not in self._streams:
            return
        self._answer(stream_id, reply, message_id)
        self._send_bodies()
        if not self._flush_due:  # what falls due in one turn of the loop shares one write
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _answer(self, stream_id: int, reply: Reply, message_id: str) -> None:
        if reply.drop:
            self.abort()
            return
        headers = [repeated(b":status", b"%d" % reply.status), literal(b"apns-id", message_id.encode())]
        headers += [literal(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
        body = _body(reply)
        del self._streams[stream_id]
        self._h2.send_headers(stream_id, headers, end_stream=not body)
        if body:
            self._unsent[stream_id] = body

    def _send_bodies(self) -> None:
        for stream_id, body in list(self._unsent.items()):
            room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
            if room > 0:
                self._h2.send_data(stream_id, body[:room], end_stream=len(body) <= room)
                del self._unsent[stream_id]
                if len(body) > room:
                    self._unsent[stream_id] = body[room:]

    def go_away(self, reason: str, last_stream_id: int | None) -> None:
        self._last_stream_id = self._h2.highest_inbound_stream_id if last_stream_id is None else last_stream_id
        for stream_id in [i for i in self._streams if i > self._last_stream_id]:
            del self._streams[stream_id]
        self._h2.close_connection(
            additional_data=json.dumps({"reason": reason}).encode(), last_stream_id=self._last_stream_id
        )
        # h2 would let nobody answer any more.
        self._h2.state_machine.state = ConnectionState.SERVER_OPEN
        self._flush()

    def _flush(self) -> None:
        self._flush_due = False
        if data := self._h2.data_to_send():
            self._transport.write(data)


def _ttl_us(expiration: str, at_us: int) -> int | None:
    return int(expiration) * 1_000_000 - at_us if expiration.isascii() and expiration.isdigit() else None


def _malformed(headers: Mapping[str, str]) -> bool:
    """Whether RFC 9113, 8.2.1 calls these headers malformed: a name in capitals, a line break in a value."""
    values = "".join(headers.values())
    return not "".join(headers).islower() or "\r" in values or "\n" in values or "\0" in values


def _body(reply: Reply) -> bytes:
    if reply.reason.startswith("<"):
        return reply.reason.encode()
    if not reply.reason:
        return b""
    content: dict[str, Any] = {"reason": reply.reason}
    if reply.status == 410:  # noqa: PLR2004
        content["timestamp"] = time.time_ns() // 1_000_000
    return json.dumps(content).encode()
