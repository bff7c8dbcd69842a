"""The APNs provider against the APNs simulator: real sockets, real TLS, real HTTP/2, real signatures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification
from notifier.providers import http2_wire
from notifier.providers.apns import ApnsProvider
from notifier.providers.apns_payload import PAYLOAD_BYTES, payload
from notifier.providers.apns_token import ProviderToken
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.http2_headers import literal
from notifier.providers.token_store import LocalTokenStore
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import Certificates, make_apns_key, make_certificates
from notifier.simulators.wire import Arrival, Reply, WireLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TEAM, KEY_ID, TOPIC = "TEAM123456", "KEY1234567", "com.example.app"
TOKEN = "ab" * 32
MINUTE_US = 60_000_000


class Log(WireLog):
    """A wire log that can be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def record(self, arrival: Arrival) -> None:
        super().record(arrival)
        for count, event in self._waiting:
            if len(self.arrivals) >= count:
                event.set()

    async def reach(self, count: int) -> None:
        event = asyncio.Event()
        self._waiting.append((count, event))
        if len(self.arrivals) >= count:
            event.set()
        await asyncio.wait_for(event.wait(), 10)


class Spy(ApnsSimulator):
    """A simulator that keeps the headers it saw."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[dict[str, str]] = []

    def receive(self, headers, body):
        self.seen.append(dict(headers))
        return super().receive(headers, body)


@dataclass
class Identity:
    certificates: Certificates
    key: str = field(repr=False)
    public: str


@dataclass
class Rig:
    provider: ApnsProvider
    simulator: Spy
    log: Log
    sent: int = field(default=0)

    async def send(self, token: str = TOKEN, **options: Any) -> Answer:
        self.sent += 1
        return await self.provider.send(dispatch(token, **{"job_id": f"job-{self.sent}", **options}))

    async def insist(self, **options: Any) -> Answer:
        """Send as a worker does: what was not sent, again once the provider's time is over."""
        answer = await self.send(**options)
        if answer.outcome is not Outcome.UNSENT:
            return answer
        assert answer.retry_after_us
        await asyncio.sleep(answer.retry_after_us / 1_000_000)
        return await self.send(**options)


def dispatch(
    token: str = TOKEN,
    *,
    job_id: str = "job-1",
    ttl_us: int | None = None,
    within_s: float = 10.0,
    **fields: Any,
) -> Dispatch:
    content = fields or {"title": "Hello"}
    notification = Notification(user="u", devices=[Device("apns", token)], **content)
    send_by = asyncio.get_running_loop().time() + within_s
    return Dispatch(job_id, notification.devices[0], notification, ttl_us, send_by)


@pytest.fixture(scope="module")
def identity(tmp_path_factory) -> Identity:
    folder = tmp_path_factory.mktemp("identity")
    key_file, public = make_apns_key(folder)
    return Identity(make_certificates(folder), key_file.read_text(), public)


def make_provider(identity: Identity, endpoint: str, **options: Any) -> ApnsProvider:
    settings = {
        "team_id": TEAM,
        "key_id": KEY_ID,
        "key": identity.key,
        "topic": TOPIC,
        "ca_file": identity.certificates.ca_file,
        **options,
    }
    return ApnsProvider(endpoint=endpoint, **settings)


@contextlib.asynccontextmanager
async def rig(identity: Identity, *, client: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Rig]:
    log = Log()
    simulator = Spy(
        certificates=identity.certificates,
        log=log,
        topics={TOPIC},
        team_keys={KEY_ID: (TEAM, identity.public)},
        **options,
    )
    await simulator.start()
    provider = make_provider(identity, simulator.url, **(client or {}))
    try:
        yield Rig(provider, simulator, log)
    finally:
        await provider.close()
        await simulator.close()


# What arrives.


def test_headers(identity):
    """Push type and priority follow the content, the expiry is absolute, absent without one."""

    async def run():
        async with rig(identity) as r:
            now_s = time.time()
            await r.send(ttl_us=90_500_000)
            await r.send(data={"sync": True})
            shown, silent = r.simulator.seen
            assert (shown["apns-push-type"], shown["apns-priority"]) == ("alert", "10")
            assert (silent["apns-push-type"], silent["apns-priority"]) == ("background", "5")
            assert 0 <= int(shown["apns-expiration"]) - (now_s + 90.5) < 3
            assert "apns-expiration" not in silent
            assert "apns-collapse-id" not in silent

    asyncio.run(run())


# What is answered.

ANSWERS = [
    (Reply(410, "Unregistered"), Answer(Outcome.DEAD_TOKEN, 410, "Unregistered")),
    (Reply(410, "ExpiredToken"), Answer(Outcome.DEAD_TOKEN, 410, "ExpiredToken")),
    (Reply(400, "BadDeviceToken"), Answer(Outcome.REJECTED, 400, "BadDeviceToken")),
    (Reply(400, "DeviceTokenNotForTopic"), Answer(Outcome.REJECTED, 400, "DeviceTokenNotForTopic")),
    (Reply(413, "PayloadTooLarge"), Answer(Outcome.REJECTED, 413, "PayloadTooLarge")),
    (Reply(403, "InvalidProviderToken"), Answer(Outcome.FAULT, 403, "InvalidProviderToken", MINUTE_US)),
    (Reply(429, "TooManyProviderTokenUpdates"),
     Answer(Outcome.FAULT, 429, "TooManyProviderTokenUpdates", MINUTE_US)),
    (Reply(429, "TooManyRequests"), Answer(Outcome.RETRY, 429, "TooManyRequests", MINUTE_US)),
    (Reply(500, "InternalServerError"), Answer(Outcome.UNKNOWN, 500, "InternalServerError", 15 * MINUTE_US)),
    (Reply(503, "Shutdown"), Answer(Outcome.UNKNOWN, 503, "Shutdown", 15 * MINUTE_US)),
    (Reply(400, "NeverHeardOf"), Answer(Outcome.REJECTED, 400, "NeverHeardOf")),
    (Reply(418, ""), Answer(Outcome.REJECTED, 418)),
    (Reply(599, "NeverHeardOf"), Answer(Outcome.UNKNOWN, 599, "NeverHeardOf", 15 * MINUTE_US)),
    (Reply(502, "<html><body>Bad Gateway</body></html>"), Answer(Outcome.UNKNOWN, 502, "", 15 * MINUTE_US)),
    (Reply(302, "<html>login</html>"), Answer(Outcome.FAULT, 302, "", MINUTE_US)),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "expected"), ANSWERS, ids=lambda v: getattr(v, "reason", "")[:20] or "none")
def test_answers(identity, reply, expected):
    """Each status and reason has its meaning, and one that was never seen before has one too."""

    async def run():
        async with rig(identity, scripts={TOKEN: [reply]}) as r:
            assert await r.send() == expected
            assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED

    asyncio.run(run())


def test_wrong_topic(identity):
    """A topic that is not ours is a fault of the configuration, not of the message."""

    async def run():
        async with rig(identity, client={"topic": "com.example.other"}) as r:
            answer = await r.send()
            assert (answer.outcome, answer.reason) == (Outcome.FAULT, "TopicDisallowed")
            assert answer.retry_after_us

    asyncio.run(run())


def test_strange_key(identity, tmp_path):
    """A provider token signed with another team's key is refused, and the message is kept."""
    other = make_apns_key(tmp_path)[0].read_text()

    async def run():
        async with rig(identity, client={"key": other}) as r:
            answer = await r.send()
            assert (answer.outcome, answer.reason) == (Outcome.FAULT, "InvalidProviderToken")

    asyncio.run(run())


def test_fresh_token_called_expired(identity):
    """A new provider token that Apple calls expired is a fault of a clock: no other is made instead."""

    async def run():
        async with rig(identity, clock=lambda: time.time() + 7200) as r:
            answers = [await r.send() for _ in range(3)]
            assert {(a.outcome, a.reason) for a in answers} == {(Outcome.FAULT, "ExpiredProviderToken")}
            assert len({headers["authorization"] for headers in r.simulator.seen}) == 1

    asyncio.run(run())


def test_expired_token_is_renewed(identity):
    """A provider token of over 20 minutes that Apple calls expired is made anew once, for all who used it."""

    async def run():
        async with rig(identity) as r:
            clock = [time.time() - 70 * 60]
            store = LocalTokenStore(lambda: clock[0])
            r.provider._token = ProviderToken(team_id=TEAM, key_id=KEY_ID, key=identity.key, store=store)
            assert (await r.send()).outcome is Outcome.FAULT
            clock[0] += 25 * 60
            r.provider._token._refused_at = -1.0  # that was a while ago
            answers = await asyncio.gather(*(r.send() for _ in range(5)))
            assert Outcome.RETRY in {a.outcome for a in answers}
            assert Outcome.FAULT not in {a.outcome for a in answers}
            assert (await r.send()).outcome is Outcome.DELIVERED
            assert len({headers["authorization"] for headers in r.simulator.seen}) == 2

    asyncio.run(run())


# Many at once.


def test_many_large_bodies(identity):
    """500 bodies of 4,096 bytes at once, far over the connection's window, all arrive."""
    room = PAYLOAD_BYTES - len(payload(Notification(user="u", devices=[], title="t", body="")))
    body = "x" * (room - len(',"body":""'))

    async def run():
        async with rig(identity) as r:
            async with asyncio.timeout(20):
                answers = await asyncio.gather(*(r.send(title="t", body=body) for _ in range(500)))
            assert {a.outcome for a in answers} == {Outcome.DELIVERED}
            assert len({a.message_id for a in r.log.arrivals}) == 500
            assert r.simulator.connections_opened == 1

    asyncio.run(run())


def test_narrow_streams(identity):
    """A body wider than its stream's window goes out in parts as the server takes them, and arrives whole."""

    async def run():
        async with rig(identity, window_bytes=1000) as r:
            await r.send(data={"x": "y" * 4000})
            async with asyncio.timeout(20):
                answers = await asyncio.gather(*(r.send(data={"x": "y" * 4000}) for _ in range(30)))
            assert {a.outcome for a in answers} == {Outcome.DELIVERED}
            assert {len(a.data["x"]) for a in r.log.arrivals} == {4000}

    asyncio.run(run())


def test_unfinished_body(identity):
    """A request of which a part never left is UNSENT at its timeout: nobody can act on half a message."""

    async def run():
        async with rig(identity, window_bytes=0, client={"timeout_us": 200_000}) as r:
            await r.send()  # before the client has read how narrow the window is
            answer = await r.send()
            assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Timeout")
            assert len(r.log.arrivals) == 1

    asyncio.run(run())


def test_many_errors(identity):
    """Error bodies in their thousands do not use up the window they arrive through."""
    page = "<html>" + "x" * 3000

    async def run():
        async with rig(identity, scripts={TOKEN: [Reply(502, page)]}) as r:
            async with asyncio.timeout(20):
                for _ in range(5):
                    answers = await asyncio.gather(*(r.send() for _ in range(100)))
                    assert {a.status for a in answers} == {502}
            assert r.simulator.connections_opened == 1

    asyncio.run(run())


def test_stream_limit(identity):
    """Never more streams than the server admits: one until a token was accepted, then what it says."""

    async def run():
        async with rig(identity, max_streams=7, latency_ms=5) as r:
            answers = await asyncio.gather(*(r.send() for _ in range(60)))
            assert {a.outcome for a in answers} == {Outcome.DELIVERED}
            assert r.simulator.streams_refused == 0
            assert r.simulator.most_streams == 7

    asyncio.run(run())


def test_send_by(identity):
    """What got no stream before its send_by is UNSENT in time, and is never sent after it."""

    async def run():
        async with rig(identity, max_streams=1, latency_ms=300) as r:
            first = asyncio.create_task(r.send())
            await r.log.reach(1)
            began = time.monotonic()
            late = await r.send(within_s=0.05)
            assert time.monotonic() - began < 0.25
            assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
            assert (await r.send(within_s=-1)).outcome is Outcome.UNSENT
            assert (await first).outcome is Outcome.DELIVERED
            assert (await r.send()).outcome is Outcome.DELIVERED
            assert len(r.log.arrivals) == 2

    asyncio.run(run())


# What breaks.


def test_timeout(identity):
    """A request that left and has no answer in time is UNKNOWN; its neighbours are not disturbed."""
    scripts = {TOKEN: [Reply(200, delay_ms=5000)]}

    async def run():
        async with rig(identity, scripts=scripts, latency_ms=10, client={"timeout_us": 300_000}) as r:
            await r.send("cd" * 32)
            slow = asyncio.create_task(r.send())
            await r.log.reach(2)
            while not slow.done():
                assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED
            answer = await slow
            assert (answer.outcome, answer.reason) == (Outcome.UNKNOWN, "Timeout")
            assert r.simulator.connections_opened == 1

    asyncio.run(run())


def test_silent_connection_is_left(identity):
    """A connection that said nothing for a whole timeout gets no further request; the next is answered."""
    scripts = {TOKEN: [Reply(200, delay_ms=5000)]}

    async def run():
        async with rig(identity, scripts=scripts, client={"timeout_us": 300_000}) as r:
            await r.send("cd" * 32)
            assert (await r.send()).outcome is Outcome.UNKNOWN
            assert (await r.insist(token="cd" * 32)).outcome is Outcome.DELIVERED
            assert r.simulator.connections_opened == 2

    asyncio.run(run())


def test_goaway(identity):
    """After a GOAWAY: above the last stream UNSENT, the rest is answered, the next goes elsewhere."""

    async def run():
        async with rig(identity, latency_ms=150) as r:
            await r.send()  # stream 1
            sends = [asyncio.create_task(r.send()) for _ in range(4)]  # streams 3, 5, 7 and 9
            await r.log.reach(5)
            r.simulator.go_away(last_stream_id=5)
            answers = await asyncio.gather(*sends)
            assert [a.outcome for a in answers] == [Outcome.DELIVERED] * 2 + [Outcome.UNSENT] * 2
            assert (await r.insist()).outcome is Outcome.DELIVERED
            assert r.simulator.connections_opened == 2
            assert len(r.simulator.connections) == 1

    asyncio.run(run())


def test_backoff_grows(identity):
    """Each connection that cannot be opened doubles the time to the next, and all are answered meanwhile."""
    with socket.socket() as taken:  # bound but not listening: refuses
        taken.bind(("127.0.0.1", 0))

        async def run():
            provider = make_provider(identity, f"https://127.0.0.1:{taken.getsockname()[1]}")
            waits_us = []
            for _ in range(6):
                waits_us.append((await provider.send(dispatch())).retry_after_us)
                provider._channel._not_before = 0.0
            assert 190_000 <= waits_us[0] <= 200_000
            assert all(b >= 0.99 * a for a, b in itertools.pairwise(waits_us))
            assert 3_000_000 <= waits_us[-1] <= 6_400_000
            await provider.close()

        asyncio.run(run())


def test_wrong_authority(identity, tmp_path):
    """A server that our authority did not sign for gets nothing, and that is said once."""
    strange = make_certificates(tmp_path).ca_file

    async def run():
        with structlog.testing.capture_logs() as logs:
            async with rig(identity, client={"ca_file": strange}) as r:
                for _ in range(3):
                    answer = await r.send()
                    assert answer.outcome is Outcome.UNSENT
                    assert answer.retry_after_us
                    r.provider._channel._not_before = 0.0
                assert r.log.arrivals == []
        warnings = [entry for entry in logs if entry["log_level"] in {"warning", "error"}]
        assert [entry["event"] for entry in warnings] == ["provider_unreachable"]
        assert "CERTIFICATE_VERIFY_FAILED" in warnings[0]["why"]

    asyncio.run(run())


def test_cancelled_send(identity):
    """A send that its caller cancels gives its stream back."""

    async def run():
        async with rig(identity, max_streams=1, scripts={TOKEN: [Reply(200, delay_ms=5000)]}) as r:
            send = asyncio.create_task(r.send())
            await r.log.reach(1)
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
            assert (await r.send("cd" * 32)).outcome is Outcome.DELIVERED

    asyncio.run(run())


def test_keep_alive(identity, monkeypatch):
    """An idle connection that still answers is kept, one that does not is left for a new one."""
    monkeypatch.setattr(http2_wire, "IDLE_S", 0.05)

    async def run():
        async with rig(identity, client={"timeout_us": 200_000}) as r:
            await r.send()
            connection = r.provider._channel._connection
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(connection.ended), 0.5)
            (server_side,) = r.simulator.connections
            server_side._transport.pause_reading()
            await asyncio.wait_for(connection.ended, 5)
            assert (await r.insist()).outcome is Outcome.DELIVERED
            server_side.abort()

    asyncio.run(run())


# What is refused here.


def test_refused_before_sending(identity):
    """What Apple cannot take is REJECTED without touching the connection: size, key, header."""

    async def run():
        async with rig(identity) as r:
            large = await r.send(body="x" * 5000)
            aps = await r.send(data={"aps": {}})
            header = await r.send(title="t", collapse_id="a\r\nb")
            assert {a.outcome for a in (large, aps, header)} == {Outcome.REJECTED}
            assert r.simulator.connections_opened == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "field_name"),
    [
        ({"data": {"aps": {"badge": 9}}}, "data.aps"),
        ({"title": "\ud800"}, "title"),
        ({"title": "t", "data": {"k": "\ud800"}}, "data"),
        ({"title": "t", "collapse_id": " x"}, "collapse_id"),
    ],
)
def test_payload_refuses(fields, field_name):
    """The payload names the field that cannot be sent to Apple."""
    with pytest.raises(InvalidNotificationError) as caught:
        payload(Notification(user="u", devices=[Device("apns", TOKEN)], **fields))
    assert caught.value.field == field_name


def test_payload_bytes():
    """The payload is compact UTF-8, shown content under aps and custom data beside it."""
    shown = Notification(user="u", devices=[], title="ü", badge=0, data={"a": 1})
    assert payload(shown) == '{"aps":{"alert":{"title":"ü"},"badge":0},"a":1}'.encode()
    assert payload(Notification(user="u", devices=[], data={"a": 1})) == b'{"aps":{"content-available":1},"a":1}'


@pytest.mark.parametrize(
    "options",
    [
        {"key": "-----BEGIN PRIVATE KEY-----\nMIGHAgEAsecret\n-----END PRIVATE KEY-----"},
        {"key": "secret"},
        {"endpoint": "http://api.push.apple.com"},
        {"endpoint": "https://host:port"},
        {"endpoint": "https://user:secret@host/path"},
    ],
)
def test_settings(identity, options):
    """What cannot be used is refused when the provider is built, with a text that never shows the key."""
    settings = {"endpoint": "https://127.0.0.1:1", **options}
    with pytest.raises(SettingsError) as caught:
        make_provider(identity, **settings)
    assert "providers.apns." in str(caught.value)
    assert "MIGHAgEA" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_missing_authority(identity, tmp_path):
    """A file of authorities that is not there is an error of the settings."""
    with pytest.raises(SettingsError, match="ca_file"):
        make_provider(identity, "https://127.0.0.1:1", ca_file=tmp_path / "none.pem")


# The simulator itself.


def test_garbage_closes_one_connection(identity):
    """A client that speaks nonsense loses its own connection and disturbs no other."""

    async def run():
        async with rig(identity) as r:
            await r.send()
            tls = ssl.create_default_context(cafile=identity.certificates.ca_file)
            tls.set_alpn_protocols(["h2"])
            port = int(r.simulator.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            writer.write(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 10)
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
            await writer.wait_closed()
            assert (await r.send()).outcome is Outcome.DELIVERED
            assert r.simulator.connections_opened == 2

    asyncio.run(run())


@pytest.mark.parametrize("bad", [literal(b"x-note", b"a\r\nb"), literal(b"X-Note", b"a")])
def test_malformed_header(identity, bad):
    """A request with a malformed header is cut off and never arrives; its connection goes on."""

    async def run():
        async with rig(identity) as r:
            await r.send()
            one = dispatch(job_id="bad")
            headers = [*r.provider._headers(one, r.provider._token.current()), bad]
            answer = await r.provider._channel.request(headers, b"{}", send_by=one.send_by)
            assert (answer.outcome, answer.reason) == (Outcome.UNKNOWN, "StreamReset")
            assert (await r.send()).outcome is Outcome.DELIVERED
            assert len(r.log.arrivals) == 2
            assert r.simulator.connections_opened == 1

    asyncio.run(run())


def test_wire_log(tmp_path):
    """A log is read while it is written, but for an unfinished line."""
    path = tmp_path / "wire.jsonl"
    log = WireLog(path)
    arrival = Arrival(1, "apns", TOKEN, 200, "", "id", None, {"n": 1}, "Grüße")
    log.record(arrival)
    with path.open("a") as file:
        file.write('{"at_us": 2')
    assert WireLog.read(path) == [arrival]
    log.close()
