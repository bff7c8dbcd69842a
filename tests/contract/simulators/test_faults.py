"""What the simulators do wrong when they are told to, seen by clients of the least kind: h2 on a socket, aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes

from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import Certificates, make_apns_key, make_certificates
from notifier.simulators.control import Control
from notifier.simulators.faults import FAULTS, read_scripts
from notifier.simulators.fcm import AUDIENCE, GRANT, SCOPE, FcmSimulator, make_service_account
from notifier.simulators.wire import Reply, WireLog

TEAM, KEY_ID, TOPIC, PROJECT = "TEAM123456", "KEY1234567", "com.example.app", "simulated-project"
TOKEN, OTHER = "ab" * 32, "cd" * 32
FCM_TOKEN = "fcm-registration-token"
PATIENCE_S = 10.0
SILENCE_S = 0.3  # so long a client is left without a word before it is taken for silence


class H2(H2Connection):
    """h2, but it reads on after a GOAWAY (what was open is still answered) and may open too many streams."""

    @property
    def open_outbound_streams(self) -> int:
        return 0

    def _receive_goaway_frame(self, frame: Any) -> Any:
        result = super()._receive_goaway_frame(frame)
        self.state_machine.state = ConnectionState.CLIENT_OPEN
        return result


class Raw:
    """An HTTP/2 client that does one thing at a time and keeps every event."""

    def __init__(self, simulator: ApnsSimulator, certificates: Certificates, authorization: str) -> None:
        self.events: list[Any] = []
        self.gone = False
        self.h2 = H2(H2Configuration(header_encoding="utf-8"))
        self._url = simulator.url
        self._authorization = authorization
        self._tls = ssl.create_default_context(cafile=certificates.ca_file)
        self._tls.set_alpn_protocols(["h2"])

    async def connect(self) -> Raw:
        port = int(self._url.rpartition(":")[2])
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, ssl=self._tls)
        self.h2.initiate_connection()
        self.flush()
        return self

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def post(self, token: str = TOKEN, body: bytes = b'{"aps":{"alert":"x"}}', *, whole: bool = True) -> int:
        """Send one request, unflushed, or all of it but its end; its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        asked = {
            ":method": "POST",
            ":scheme": "https",
            ":path": f"/3/device/{token}",
            ":authority": "localhost",
            "authorization": self._authorization,
            "apns-topic": TOPIC,
            "apns-push-type": "alert",
        }
        self.h2.send_headers(stream_id, list(asked.items()))
        self.h2.send_data(stream_id, body, end_stream=whole)
        return stream_id

    async def until(self, done: Callable[[], Any], within_s: float = PATIENCE_S) -> bool:
        """Read until `done`, the end of the connection or the end of patience; whether it is done."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not done() and not self.gone:
                    try:
                        data = await self._reader.read(65_536)
                    except OSError:
                        data = b""
                    self.gone = not data
                    for event in self.h2.receive_data(data) if data else ():
                        self.events.append(event)
                        if isinstance(event, DataReceived):
                            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    self.flush()
        return bool(done())

    def of(self, kind: type, stream_id: int | None = None) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind) and (stream_id is None or e.stream_id == stream_id)]

    async def answer(self, stream_id: int) -> tuple[int, dict[str, str], bytes]:
        assert await self.until(lambda: self.of(StreamEnded, stream_id)), "no answer"
        headers = dict(self.of(ResponseReceived, stream_id)[0].headers)
        body = b"".join(event.data for event in self.of(DataReceived, stream_id))
        return int(headers[":status"]), headers, body

    async def ask(self, *args: Any) -> tuple[int, dict[str, str], bytes]:
        stream_id = self.post(*args)
        self.flush()
        return await self.answer(stream_id)

    async def silence(self) -> bool:
        """Whether nothing comes, and the connection stays."""
        return not await self.until(lambda: False, SILENCE_S) and not self.gone

    def limits(self) -> list[int]:
        """The stream limits that were announced, in order."""
        code = SettingCodes.MAX_CONCURRENT_STREAMS
        settings = [event.changed_settings for event in self.of(RemoteSettingsChanged)]
        return [changed[code].new_value for changed in settings if code in changed]


@dataclass(frozen=True)
class Identity:
    certificates: Certificates
    key: str = field(repr=False)
    public: str
    account_file: Path


class World:
    """Both simulators and their control in this process."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.certificates = identity.certificates
        self._key = identity.key
        self._account_file = identity.account_file
        self.log = WireLog()
        self.apns = ApnsSimulator(
            certificates=self.certificates, log=self.log, topics={TOPIC}, team_keys={KEY_ID: (TEAM, identity.public)}
        )
        self.fcm = FcmSimulator(certificates=self.certificates, log=self.log)
        self.control = Control(folder / "control", self.log, [self.apns, self.fcm])
        self.clients: list[Raw] = []
        self._came = asyncio.Event()
        self.log.watch(lambda _: self._came.set())

    async def reach(self, count: int) -> None:
        """Wait until so many messages have arrived."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.log.arrivals) < count:
                self._came.clear()
                await self._came.wait()

    async def tell(self, document: object) -> None:
        """What a person tells the simulators."""
        await self.control.tell(document)

    async def raw(self, age_s: int = 0) -> Raw:
        """A client with a provider token of this age."""
        claims = {"iss": TEAM, "iat": int(time.time()) - age_s}
        token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": KEY_ID})
        self.clients.append(await Raw(self.apns, self.certificates, f"bearer {token}").connect())
        return self.clients[-1]

    async def trusted(self) -> Raw:
        """A client whose provider token was accepted, and which knows the stream limit."""
        raw = await self.raw()
        assert (await raw.ask(OTHER))[0] == 200
        assert await raw.until(lambda: len(raw.limits()) > 1)
        return raw

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        account = json.loads(self._account_file.read_text())
        self.fcm.trust(self._account_file)
        tls = ssl.create_default_context(cafile=self.certificates.ca_file)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as client:
            yield Session(client, self.fcm.url, account)


class Session:
    """An HTTP client of FCM's."""

    def __init__(self, client: aiohttp.ClientSession, url: str, account: dict[str, str]) -> None:
        self._client, self._url, self._account = client, url, account
        self.bearer = ""

    async def authorize(self, scope: str = SCOPE) -> tuple[int, Any]:
        now = int(time.time())
        claims = {"iss": self._account["client_email"], "aud": AUDIENCE, "iat": now, "exp": now + 3600, "scope": scope}
        assertion = jwt.encode(claims, self._account["private_key"], algorithm="RS256")
        data = {"grant_type": GRANT, "assertion": assertion}
        async with self._client.post(f"{self._url}/token", data=data) as response:
            answer = await (response.json() if response.content_type == "application/json" else response.text())
            if response.status == 200:
                self.bearer = answer["access_token"]
            return response.status, answer

    async def send(self, token: str = FCM_TOKEN, project: str = PROJECT) -> tuple[int, Any, Any]:
        """The status, the headers, and the body: parsed if it is JSON."""
        message = {"message": {"token": token, "notification": {"title": "x"}}}
        headers = {"Authorization": f"Bearer {self.bearer}"}
        url = f"{self._url}/v1/projects/{project}/messages:send"
        async with self._client.post(url, json=message, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, response.headers, await (response.json() if is_json else response.text())


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder = tmp_path_factory.mktemp("identity")
    key_file, public = make_apns_key(folder)
    account_file = make_service_account(folder, "https://127.0.0.1/token", PROJECT)
    return Identity(make_certificates(folder), key_file.read_text(), public, account_file)


@pytest.fixture
def new_world(identity: Identity, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[World]]:
    """Opens a world for a test."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[World]:
        world = World(identity, tmp_path)
        await world.apns.start()
        await world.fcm.start()
        try:
            yield world
        finally:
            for client in world.clients:
                await client.close()
            await world.control.close()
            await world.apns.close()
            await world.fcm.close()

    return opened


SAID = [name for name, fault in FAULTS.items() if fault.replies.get("apns", Reply()).status != 200]


@pytest.mark.parametrize("name", SAID)
async def test_a_named_fault_of_apns_is_said_as_apple_says_it(new_world, name):
    """Each fault with an answer has Apple's status and form, and the next message of another device is taken."""
    async with new_world() as world:
        await world.tell({"scripts": {TOKEN: name}})
        raw = await world.raw()
        reply = FAULTS[name].replies["apns"]
        status, headers, body = await raw.ask()
        assert status == reply.status
        if reply.reason.startswith("<"):
            assert body.decode() == reply.reason
        else:
            said = json.loads(body)
            assert said["reason"] == reply.reason
            assert ("timestamp" in said) == (status == 410)
        if reply.retry_at_s is None:
            assert headers.get("retry-after") == reply.headers.get("Retry-After")
        else:
            at, now = (parsedate_to_datetime(headers[key]) for key in ("retry-after", "date"))
            assert (at - now).total_seconds() == reply.retry_at_s
        assert (await raw.ask(OTHER))[0] == 200


async def test_one_stream_until_trusted_and_again_after_a_refused_token(new_world):
    """One stream at first; the limit once a token was accepted; one again when a token is refused; and up again."""
    async with new_world() as world:
        await world.tell({"scripts": {TOKEN: ["expired_credentials", {}, "bad_credentials", "unregistered"]}})
        raw = await world.raw()
        first, second = raw.post(OTHER, whole=False), raw.post(OTHER)
        raw.h2.end_stream(first)
        raw.flush()
        assert (await raw.answer(first))[0] == 200
        assert raw.of(StreamReset, second)[0].error_code is ErrorCodes.REFUSED_STREAM
        for expected in ([1, 1000, 1], [1, 1000, 1, 1000], [1, 1000, 1, 1000, 1]):
            await raw.ask()
            assert await raw.until(lambda expected=expected: raw.limits() == expected)
        assert (await raw.ask())[0] == 410  # a dead device is no mistrust
        assert await raw.until(lambda: raw.limits() == [1, 1000, 1, 1000, 1, 1000])


async def test_a_stream_limit_that_shrinks_binds_once_it_was_acknowledged(new_world):
    """A lower limit is announced at once; streams opened before the client has read it are still served."""
    async with new_world() as world:
        raw = await world.trusted()
        world.apns.latency_ms = 50
        before = [raw.post() for _ in range(3)]
        await world.tell({"apns": {"max_streams": 1}})  # the client has not read it
        raw.flush()
        for stream_id in before:
            assert (await raw.answer(stream_id))[0] == 200
        assert raw.limits()[-1] == 1
        one, many = raw.post(), raw.post()
        raw.flush()
        assert (await raw.answer(one))[0] == 200
        assert raw.of(StreamReset, many)


async def test_goaway_in_mid_batch(new_world):
    """By script, the stream that meets it is the last one answered; told with keep, the older half of the open ones."""
    async with new_world() as world:
        await world.tell({"scripts": {TOKEN: "go_away"}})
        raw = await world.trusted()
        batch = [raw.post(OTHER), raw.post(OTHER), raw.post(), raw.post(OTHER), raw.post(OTHER)]
        arrived = len(world.log.arrivals)
        raw.flush()
        for stream_id in batch[:3]:
            assert (await raw.answer(stream_id))[0] == 200
        (goaway,) = raw.of(ConnectionTerminated)
        assert (goaway.last_stream_id, json.loads(goaway.additional_data)) == (batch[2], {"reason": "Shutdown"})
        assert len(world.log.arrivals) == arrived + 3

        world.apns.latency_ms = 100
        raw = await world.trusted()
        batch = [raw.post(OTHER) for _ in range(4)]
        raw.flush()
        await world.reach(8)
        await world.tell({"apns": {"go_away": {"keep": 0.5, "reason": "Maintenance"}}})
        for stream_id in batch[:2]:
            assert (await raw.answer(stream_id))[0] == 200
        (goaway,) = raw.of(ConnectionTerminated)
        assert (goaway.last_stream_id, json.loads(goaway.additional_data)) == (batch[1], {"reason": "Maintenance"})
        assert await raw.silence()


async def test_goaway_before_the_first_stream_is_answered(new_world):
    """Where not even the first one is among those that are kept, it is told so: no client waits for its answer."""
    async with new_world() as world:
        world.apns.latency_ms = 100
        raw = await world.raw()
        first = raw.post(OTHER)
        raw.flush()
        await world.reach(1)
        await world.tell({"apns": {"go_away": {"keep": 0.5}}})
        assert await raw.until(lambda: raw.of(ConnectionTerminated))
        (goaway,) = raw.of(ConnectionTerminated)
        assert goaway.last_stream_id < first


async def test_a_reset_and_a_refused_stream(new_world):
    """RST_STREAM with the error code that was asked for, in place of an answer; the connection lives on."""
    async with new_world() as world:
        await world.tell({"scripts": {TOKEN: ["refused_stream", "reset_stream", {"reset": "ENHANCE_YOUR_CALM"}]}})
        raw = await world.trusted()
        for code in (ErrorCodes.REFUSED_STREAM, ErrorCodes.INTERNAL_ERROR, ErrorCodes.ENHANCE_YOUR_CALM):
            stream_id = raw.post()
            raw.flush()
            assert await raw.until(lambda stream_id=stream_id: raw.of(StreamReset, stream_id))
            assert raw.of(StreamReset, stream_id)[0].error_code is code
        assert (await raw.ask(OTHER))[0] == 200
        assert [a.status for a in world.log.arrivals if a.token == TOKEN] == [0, 0, 0]


async def test_cut_after_the_request_was_taken(new_world):
    """The message arrives, the connection ends without an answer; told to, every connection ends at once."""
    async with new_world() as world:
        await world.tell({"scripts": {TOKEN: "cut"}})
        raw, bystander = await world.trusted(), await world.trusted()
        raw.post()
        raw.flush()
        assert not await raw.until(lambda: False)
        assert raw.gone
        assert (world.log.arrivals[-1].token, world.log.arrivals[-1].status) == (TOKEN, 0)
        await world.tell({"apns": {"cut": True}})
        await bystander.until(lambda: False)
        assert bystander.gone


async def test_silence_for_one_device(new_world):
    """Its messages arrive and are never answered; everyone else's are, on the same connection."""
    async with new_world() as world:
        await world.tell({"scripts": {TOKEN: "silent"}})
        raw = await world.trusted()
        unanswered = raw.post()
        assert (await raw.ask(OTHER))[0] == 200
        assert await raw.silence()
        assert not raw.of(ResponseReceived, unanswered)


async def test_a_request_that_is_taken_back_at_once_ends_no_other(new_world):
    """A busy server reads a request and the end of it in one go: its connection stays, and the others are answered."""
    async with new_world() as world:
        raw = await world.trusted()
        raw.h2.reset_stream(raw.post())
        assert (await raw.ask(OTHER))[0] == 200


async def test_a_server_that_went_half_dead(new_world):
    """It accepts and never answers, not even a PING, and closes nothing; who connects afterwards is served again."""
    async with new_world() as world:
        raw = await world.trusted()
        world.apns.latency_ms = 30
        late = raw.post(OTHER)
        raw.flush()
        await world.reach(2)
        await world.tell({"apns": {"silent": True}})
        raw.h2.ping(b"are you?")
        raw.post(OTHER)
        raw.flush()
        newcomer = await world.raw()
        newcomer.flush()
        assert await raw.silence()
        assert await newcomer.silence()
        assert not raw.of(ResponseReceived, late)  # an answer that was under way is lost too
        assert not raw.of(PingAckReceived)
        assert not newcomer.events
        await world.tell({"apns": {"silent": False}})
        raw.h2.ping(b"are you?")
        raw.flush()
        assert await raw.silence()
        await world.trusted()
        assert len(world.log.arrivals) == 3  # what was sent into the silence never arrived


async def test_a_connection_that_dies_of_idleness(new_world):
    """After a time without a word it never gets another byte, nor a FIN; one that keeps talking lives."""
    async with new_world() as world:
        idle, busy = await world.trusted(), await world.trusted()
        await asyncio.sleep(1)  # longer than the idle time
        assert (await busy.ask(OTHER))[0] == 200
        await world.tell({"apns": {"idle_s": 0.9}})
        assert (await busy.ask(OTHER))[0] == 200
        idle.post(OTHER)
        idle.flush()
        assert await idle.silence()
        assert not idle.of(StreamEnded)[1:]


async def test_windows_that_are_used_up(new_world):
    """Told so, no window is ever opened again: the connection takes 65,535 bytes, a stream as many as it was given."""
    async with new_world() as world:
        await world.tell({"apns": {"window_updates": False, "window_bytes": 5000}})
        raw = await world.trusted()
        spent = 65_535 - raw.h2.outbound_flow_control_window
        body = json.dumps({"aps": {"alert": "x" * 4000}}).encode()
        for _ in range((65_535 - spent) // len(body)):
            stream_id = raw.post(OTHER, body)
            assert raw.h2.local_flow_control_window(stream_id) == 5000 - len(body)
            raw.flush()
            assert (await raw.answer(stream_id))[0] == 200
        assert raw.h2.outbound_flow_control_window < len(body)
        await world.tell({"apns": {"window_updates": True}})
        fresh = await world.trusted()
        assert (await fresh.ask(OTHER, body))[0] == 200


async def test_refused_connections(new_world):
    """While it refuses nobody can connect; then it listens again where it did, and knows what it knew."""
    async with new_world() as world:
        raw, before = await world.trusted(), (world.apns.url, world.fcm.url)
        await world.tell({"apns": {"listening": False}, "fcm": {"listening": False}})
        await raw.until(lambda: False)
        assert raw.gone
        for simulator in (world.apns, world.fcm):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", int(simulator.url.rpartition(":")[2]))
        await world.tell({"apns": {"listening": True}, "fcm": {"listening": True}})
        await world.trusted()
        assert (world.apns.url, world.fcm.url) == before


async def test_the_certificate_of_somebody_else(new_world):
    """A client that checks names refuses the handshake, and only as long as it lasts."""
    async with new_world() as world:
        await world.tell({"apns": {"wrong_name": True}, "fcm": {"wrong_name": True}})
        with pytest.raises(ssl.SSLCertVerificationError, match=re.escape("127.0.0.1")):
            await world.raw()
        async with world.session() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.authorize()
            await world.tell({"apns": {"wrong_name": False}, "fcm": {"wrong_name": False}})
            assert (await session.authorize())[0] == 200
        await world.trusted()


async def test_provider_tokens_end_when_told(new_world):
    """Every provider token so far is refused as expired, a new one is taken; with the rule, not too soon a newer."""
    async with new_world() as world:
        old = await world.raw(age_s=60)
        assert (await old.ask())[0] == 200
        await world.tell({"apns": {"expire_tokens": True}})
        status, _, body = await old.ask()
        assert (status, json.loads(body)["reason"]) == (403, "ExpiredProviderToken")
        new = await world.raw(age_s=30)
        assert (await new.ask())[0] == 200
        await world.tell({"apns": {"token_update_s": 1200}})
        assert (await new.ask())[0] == 200
        newer = await world.raw(age_s=10)
        status, _, body = await newer.ask()
        assert (status, json.loads(body)["reason"]) == (429, "TooManyProviderTokenUpdates")


def test_chances_are_kept_and_can_be_repeated(tmp_path):
    """A share of the messages meets the fault, the same ones at each run; scripts go before chances."""

    def outcomes() -> list[int]:
        fcm = FcmSimulator(certificates=certificates, log=WireLog())
        fcm.fail = {"internal": 0.1, "unregistered": 0.05}
        fcm.playback.rewrite("scripted", [Reply(418)])
        assert fcm.scripted("scripted") == Reply(418)
        return [getattr(fcm.scripted("any"), "status", 200) for _ in range(4000)]

    certificates = make_certificates(tmp_path)
    seen = outcomes()
    assert seen == outcomes()
    assert 320 < seen.count(500) < 480
    assert 140 < seen.count(404) < 260
    assert set(seen) == {200, 404, 500}


FCM_SAID = [name for name, fault in FAULTS.items() if fault.replies.get("fcm", Reply()).status != 200]


@pytest.mark.parametrize("name", FCM_SAID)
async def test_a_named_fault_of_fcm_is_said_as_google_says_it(new_world, name):
    """Each fault with an answer has Google's status and form, with an errorCode only where FCM gives one."""
    async with new_world() as world:
        reply = FAULTS[name].replies["fcm"]
        async with world.session() as session:
            await world.tell({"scripts": {FCM_TOKEN: [name, {}]}})
            await session.authorize()
            status, headers, body = await session.send()
            assert status == reply.status
            if reply.reason.startswith("<"):
                assert (headers["Content-Type"].partition(";")[0], body) == ("text/html", reply.reason)
            else:
                codes = [detail.get("errorCode") for detail in body["error"].get("details", [])]
                own = reply.reason in {
                    "UNREGISTERED", "INVALID_ARGUMENT", "SENDER_ID_MISMATCH", "QUOTA_EXCEEDED", "UNAVAILABLE",
                    "INTERNAL", "THIRD_PARTY_AUTH_ERROR",
                }  # fmt: skip
                assert body["error"]["code"] == status
                assert codes == [reply.reason] if own else body["error"]["status"] == reply.reason
            if reply.retry_at_s is None:
                assert headers.get("Retry-After") == reply.headers.get("Retry-After")
            else:
                at, now = (parsedate_to_datetime(headers[key]) for key in ("Retry-After", "Date"))
                assert (at - now).total_seconds() == reply.retry_at_s
            assert (await session.send())[0] == 200


async def test_fcm_cut_silent_and_slow(new_world):
    """The message arrives and the connection is cut, or no answer comes, or it comes late; then all is well again."""
    async with new_world() as world:
        script = ["cut", "silent", {"fault": "slow", "delay_ms": 200}, {}]
        await world.tell({"scripts": {FCM_TOKEN: script}})
        async with world.session() as session:
            await session.authorize()
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.send()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    await session.send()
            begun = time.monotonic()
            assert (await session.send())[0] == 200
            assert time.monotonic() - begun >= 0.2
            assert (await session.send())[0] == 200
            assert [a.status for a in world.log.arrivals] == [0, 0, 200, 200]


async def test_fcm_half_dead_and_idle(new_world):
    """A pooled connection that fell silent, by order or of idleness, never answers; a new one is served."""
    async with new_world() as world, world.session() as session:
        await session.authorize()
        assert (await session.send())[0] == 200
        await world.tell({"fcm": {"silent": True}})
        for _ in range(2):  # the pooled connection, then a new one
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    await session.send()
        await world.tell({"fcm": {"silent": False, "idle_s": 0.2}})
        assert (await session.send())[0] == 200
        await asyncio.sleep(0.3)  # longer than the idle time
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await session.send()
        assert (await session.send())[0] == 200
        assert len(world.log.arrivals) == 3  # what was sent into the silence never arrived


async def test_a_sign_in_needs_one_of_two_scopes(new_world):
    """What FCM asks for is messaging or the whole cloud; what a client asks for besides does not matter."""
    async with new_world() as world:
        auth = "https://www.googleapis.com/auth"
        async with world.session() as session:
            for scope in (f"{auth}/firebase.messaging", f"{auth}/cloud-platform {auth}/datastore {auth}/firebase"):
                assert (await session.authorize(scope))[0] == 200
                assert (await session.send())[0] == 200
            assert await session.authorize(f"{auth}/datastore {auth}/firebase") == (400, {"error": "invalid_scope"})


async def test_the_token_endpoint_goes_wrong(new_world):
    """Google's token endpoint has OAuth's own errors, can be down, slow, cut or behind a proxy that is ill."""
    async with new_world() as world:
        script = ["bad_credentials", "unavailable_seconds", "bad_gateway", "cut", {"delay_ms": 150}]
        await world.tell({"scripts": {"/token": script}})
        async with world.session() as session:
            assert await session.authorize() == (400, {"error": "invalid_grant"})
            assert await session.authorize() == (503, {"error": "internal_failure"})
            status, page = await session.authorize()
            assert (status, page[:6]) == (502, "<html>")
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.authorize()
            begun = time.monotonic()
            assert (await session.authorize())[0] == 200
            assert time.monotonic() - begun >= 0.15
            assert (await session.send())[0] == 200
            await world.tell({"fcm": {"expire_tokens": True}})
            assert (await session.send())[0] == 401


def test_a_script_for_both_platforms_has_each_one_s_words():
    """One name, two forms; what one platform does not have takes back the script there; the last reply repeats."""
    scripts = read_scripts(["apns", "fcm"], {"t": "unregistered", "u": "go_away", "/token": "bad_credentials"})
    assert scripts["apns"]["t"] == [Reply(410, "Unregistered")]
    assert scripts["fcm"]["t"] == [Reply(404, "UNREGISTERED")]
    assert (scripts["apns"]["u"], scripts["fcm"]["u"]) == ([Reply(go_away="Shutdown")], [])
    assert scripts["fcm"]["/token"] == [Reply(400, "invalid_grant")]


def test_every_fault_is_one_of_some_platform_and_has_words():
    """No name is without a meaning, and each says something else on at least one platform than acceptance."""
    for name, fault in FAULTS.items():
        assert fault.says, name
        assert fault.replies, name
        assert all(reply != Reply() for reply in fault.replies.values()), name


async def test_an_account_may_send_for_its_own_project_alone(new_world, tmp_path):
    """Of two projects each takes its own account's access token; another's is refused, as is an unknown project."""
    async with new_world() as world:
        world.fcm.trust(make_service_account(tmp_path, "https://127.0.0.1/token", "second"))
        async with world.session() as session:
            assert (await session.authorize())[0] == 200
            for project, status in ((PROJECT, 200), ("second", 403), ("third", 404)):
                assert (await session.send(project=project))[0] == status
        assert [(arrival.app, arrival.status) for arrival in world.log.arrivals] == [
            (PROJECT, 200), ("second", 403), ("third", 404)
        ]  # fmt: skip
