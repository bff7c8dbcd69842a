"""The Web Push provider against its simulator: real TLS, real signatures, bodies that only the browser can read."""

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification
from notifier.notification.subscription import KNOWN_HOSTS, read_subscription
from notifier.providers import check_payload
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.transport import http1
from notifier.providers.webpush import answers as webpush_answers
from notifier.providers.webpush import crypto
from notifier.providers.webpush.crypto import LIFE_S, REFRESH_S, STRANGERS, Vapid, encrypt
from notifier.providers.webpush.keys import load_key, public_key
from notifier.providers.webpush.payload import MAX_TTL_S, PAYLOAD_BYTES, headers, payload
from notifier.providers.webpush.provider import WebPushProvider
from notifier.simulators.certificates import Certificates, make_webpush_key
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.webpush_browser import Browser, browser, subscription
from notifier.simulators.wire import Reply
from tests.contract.wire_log import Log
from tests.harness.patient_loop import skip
from tests.harness.sections import section
from tests.harness.vapid import make_key

AGAIN = {Outcome.RETRY, Outcome.REFUSED, Outcome.BUSY, Outcome.FULL, Outcome.UNKNOWN, Outcome.FAULT}
SECOND = 1_000_000
SUBJECT = "mailto:push@example.com"

# RFC 8291, section 5 and appendix A.
RFC_UA_KEY = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
RFC_UA_PUBLIC = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
RFC_AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
RFC_BODY = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_"
    "yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)
RFC_PLAINTEXT = b"When I grow up, I want to be a watermelon"


def decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(frozen=True)
class Rig:
    provider: WebPushProvider
    simulator: WebPushSimulator
    log: Log

    def device(self, name: str = "anna", **options: str) -> Device:
        return Device("webpush", self.simulator.subscribe(name, **options))

    async def send(self, name: str = "anna", **fields: Any) -> Answer:
        return await self.provider.send(dispatch(self.device(name), **fields))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    path, public = make_webpush_key(tmp_path_factory.mktemp("key"))
    return path.read_text(), public


@pytest.fixture
def rig(certificates: Certificates, keys: tuple[str, str]) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(
        scripts: dict[str, list[Reply]] | None = None, *, server: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Rig]:
        log = Log()
        told = {"certificates": certificates, "log": log, "public_key": keys[1], "scripts": scripts} | (server or {})
        simulator = WebPushSimulator(**told)
        await simulator.start()
        given = {"subject": SUBJECT, "ca_file": certificates.ca_file, "hosts": [host(simulator)]}
        key = options.pop("key", keys[0])
        settings = section("webpush", **given).model_copy(update=options)  # also what the schema refuses
        provider = WebPushProvider(settings, key)
        try:
            yield Rig(provider, simulator, log)
        finally:
            await provider.close()
            await simulator.close()

    return make


def host(simulator: WebPushSimulator) -> str:
    return simulator.url.removeprefix("https://")


def dispatch(device: Device, *, within_s: float = 10, ttl_us: int | None = None, **fields: Any) -> Dispatch:
    fields = {"user": "7", "devices": [device], "title": "Hello", "body": "World"} | fields
    send_by = asyncio.get_running_loop().time() + within_s
    return Dispatch("job-1", device, Notification(**fields), ttl_us, send_by)


def note(**fields: Any) -> Notification:
    return Notification(**({"user": "7", "devices": [], "title": "Hello"} | fields))


# What is encrypted and signed.


def test_the_simulated_browser_reads_the_example_of_rfc_8291() -> None:
    """The independent decryption agrees with the RFC's own example, byte for byte."""
    key = ec.derive_private_key(int.from_bytes(decode(RFC_UA_KEY), "big"), ec.SECP256R1())
    reader = Browser(key, decode(RFC_AUTH))
    assert reader.public_key == decode(RFC_UA_PUBLIC)
    assert reader.decrypt(decode(RFC_BODY)) == RFC_PLAINTEXT


@given(st.binary(min_size=1, max_size=PAYLOAD_BYTES))
def test_what_is_encrypted_only_its_browser_reads(plaintext: bytes) -> None:
    """Every body is one record of at most 4,096 bytes, read by its browser and by no other."""
    body = encrypt(read_subscription(subscription("https://push.example.com", "anna")), plaintext)
    assert len(body) == len(plaintext) + 4096 - PAYLOAD_BYTES
    assert browser("anna").decrypt(body) == plaintext
    with pytest.raises(ValueError, match="another browser"):
        browser("bert").decrypt(body)


def test_a_body_that_was_touched_is_not_read() -> None:
    """One changed or missing byte, in the header, the key or the record, and the browser drops the message."""
    body = encrypt(read_subscription(subscription("https://push.example.com", "anna")), b"secret")
    for index in (0, 20, 25, 86, len(body) - 1):
        with pytest.raises(ValueError):  # noqa: PT011 - whichever check notices first
            browser("anna").decrypt(body[:index] + bytes([body[index] ^ 1]) + body[index + 1 :])
    with pytest.raises(ValueError, match="whole record"):
        browser("anna").decrypt(body[:90])


def test_a_signature_is_made_once_in_six_hours(keys: tuple[str, str]) -> None:
    """One header for each push service, for half of its life; a clock that is set back makes a new one."""
    now = [1_700_000_000.5]
    vapid = Vapid(key=keys[0], subject=SUBJECT, clock=lambda: now[0])
    first = vapid.authorization("https://a.example.com")
    claims = jwt.decode(
        first.header.removeprefix("vapid t=").partition(",")[0], load_key(keys[0]).public_key(), ["ES256"],
        options={"verify_exp": False, "verify_aud": False},
    )  # fmt: skip
    assert claims == {"sub": SUBJECT, "aud": "https://a.example.com", "exp": 1_700_000_000 + LIFE_S}
    assert first.header.endswith(f",k={keys[1]}")
    assert vapid.authorization("https://b.example.com").header != first.header
    now[0] += REFRESH_S - 1
    assert vapid.authorization("https://a.example.com") is first
    now[0] += 1
    second = vapid.authorization("https://a.example.com")
    assert second is not first
    now[0] -= 60
    assert vapid.authorization("https://a.example.com") is not second


def test_keys_are_read_in_both_forms(tmp_path: Path) -> None:
    """PEM as openssl writes it, or the number alone; py_vapid shows the same public half."""
    path = tmp_path / "webpush.pem"
    make = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out"
    subprocess.run([*make.split(), str(path)], check=True, capture_output=True)
    assert path.stat().st_mode & 0o777 == 0o600
    shown = public_key(load_key(path.read_text()))
    assert len(decode(shown)) == 65
    vapid = [sys.executable, "-m", "py_vapid.main", "--private-key", str(path), "--applicationServerKey"]
    assert subprocess.run(vapid, check=True, capture_output=True, text=True).stdout.split()[-1] == shown
    assert public_key(load_key(f"{RFC_UA_KEY}\n")) == RFC_UA_PUBLIC


@pytest.mark.parametrize(
    "text", ["", "secret", "A" * 43, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"]
)
def test_an_unusable_key_is_told_without_it(text: str) -> None:
    """What is no P-256 private key is a SettingsError that does not show it."""
    with pytest.raises(SettingsError, match="key_file") as caught:
        WebPushProvider(section("webpush", subject=SUBJECT), text)
    assert "c2VjcmV0" not in str(caught.value)


# What arrives.


async def test_a_declarative_message_is_read_by_the_browser(rig: Callable[..., Any]) -> None:
    """The browser finds title, tag and data where the Push API says, and takes nothing that is not whole."""
    async with rig() as r:
        options = {"declarative": True, "url": "https://example.com/7"}
        sent = note(devices=[r.device()], data={"id": "7"}, collapse_id="c", webpush=options)
        answer = await r.provider.send(replace(dispatch(r.device()), notification=sent))
        assert answer.outcome is Outcome.DELIVERED
        (arrival,) = r.log.arrivals
        assert (arrival.title, arrival.collapse_id, arrival.data) == (sent.title, "c", {"id": "7"})


async def test_the_whole_notification_arrives(rig: Callable[..., Any]) -> None:
    """Every field reaches the service worker, as it is and as JSON, and is kept for as long as it is worth sending."""
    options = {"icon": "/icon.png", "actions": [{"action": "yes", "title": "Yes"}], "url": "https://example.com/score"}
    data = {"a": "text", "n": 3, "yes": True, "none": None, "list": [1, {"ü": 2.5}]}
    fields: dict[str, Any] = {"collapse_id": "score", "sound": "ping", "badge": 0, "data": data, "webpush": options}
    async with rig() as r:
        answer = await r.send(title="Grüße", priority="high", ttl_us=90 * SECOND + 1, **fields)
        assert answer == Answer(Outcome.DELIVERED, 201)
        (arrival,) = r.log.arrivals
        assert (arrival.platform, arrival.token, arrival.status) == ("webpush", "anna", 200)
        assert (arrival.title, arrival.collapse_id, arrival.data) == ("Grüße", "score", data)
        assert (arrival.ttl_us, arrival.app) == (90 * SECOND, r.simulator.public_key)
    assert json.loads(payload(note(body="World", **fields))) == {
        "title": "Hello",
        "body": "World",
        "data": data,
        "sound": "ping",
        "badge": 0,
        "url": "https://example.com/score",
        "options": {"icon": "/icon.png", "actions": [{"action": "yes", "title": "Yes"}], "tag": "score"},
    }


@pytest.mark.parametrize(
    ("ttl_us", "ttl"),
    [(None, MAX_TTL_S), (-1, 0), (0, 0), (999_999, 0), (90 * SECOND, 90), (90 * 86_400 * SECOND, MAX_TTL_S)],
)
def test_ttl_is_what_is_left_in_whole_seconds(ttl_us: int | None, ttl: int) -> None:
    """What is left of a notification's life is the TTL, rounded down, at most the four weeks that all services keep."""
    assert headers(note(), ttl_us)["TTL"] == str(ttl)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64))
def test_every_collapse_id_makes_a_topic(collapse_id: str) -> None:
    """A topic is 32 characters of base64url, the same for the same collapse id, and does not give it away."""
    made = headers(note(collapse_id=collapse_id), None)
    assert made == headers(note(collapse_id=collapse_id), None) | {"TTL": made["TTL"]}
    assert made["Topic"] == hashlib.sha256(collapse_id.encode()).hexdigest()[:32]
    assert "Topic" not in headers(note(), None)


async def test_an_endpoint_reaches_its_server_as_it_is(rig: Callable[..., Any]) -> None:
    """Not a byte of an endpoint is changed on its way, though a URL library would write it otherwise."""
    odd = "?token=BQY%2bx%3d%7Ea+b'c&x=%2F"
    async with rig() as r:
        seen: list[str] = []

        async def serve(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
            seen.append(request.raw_path)
            return aiohttp.web.Response(status=201)

        await r.simulator.close()
        r.simulator.routes = lambda: [aiohttp.web.post("/push/{name}", serve)]
        await r.simulator.start()
        token = r.simulator.subscribe("anna").replace("/push/anna", "/push/anna" + odd)
        answer = await r.provider.send(dispatch(Device("webpush", token)))
        assert (answer.outcome, seen) == (Outcome.DELIVERED, ["/push/anna" + odd])


async def test_a_browser_gets_its_messages_in_order(rig: Callable[..., Any]) -> None:
    """Law 4: sends to one browser arrive in the order of the calls, though many connections are open.

    Each waits for the answer to the one before.
    """
    async with rig() as r:
        await asyncio.gather(*(r.send(f"b{n}") for n in range(20)))  # opens them
        answered, before = 0, []

        async def one(n: int) -> None:
            nonlocal answered
            await r.send(data={"n": n})
            answered += 1

        r.log.watch(lambda arrival: before.append((arrival.data["n"], answered)))
        await asyncio.gather(*(one(n) for n in range(40)))
        assert before == [(n, n) for n in range(40)]


# What is answered.

ROWS = [
    (200, "", Outcome.DELIVERED),
    (201, "", Outcome.DELIVERED),
    (202, "", Outcome.DELIVERED),
    (204, "", Outcome.DELIVERED),
    (301, "<html>Moved</html>", Outcome.REJECTED),
    (307, "", Outcome.REJECTED),
    (400, "BadWebPushTopic", Outcome.REJECTED),
    (400, "", Outcome.REJECTED),
    (401, "MissingAuthorization", Outcome.RETRY),  # at the first, as a 403 and a 405; see `Authorization`
    (403, "BadJwtToken", Outcome.RETRY),
    (404, "", Outcome.DEAD_TOKEN),
    (405, "", Outcome.RETRY),
    (406, "", Outcome.BUSY),
    (408, "", Outcome.RETRY),
    (410, "Unregistered", Outcome.DEAD_TOKEN),
    (413, "PayloadTooLarge", Outcome.REJECTED),
    (429, "TooManyRequests", Outcome.BUSY),
    (500, "InternalServerError", Outcome.UNKNOWN),
    (502, "<html>Bad gateway</html>", Outcome.UNKNOWN),
    (503, "", Outcome.UNKNOWN),
    (599, "", Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("status", "reason", "outcome"), ROWS)
async def test_answers_follow_the_table(rig: Callable[..., Any], status: int, reason: str, outcome: Outcome) -> None:
    """Each answer of a push service has its one outcome, keeps the service's word and costs one request."""
    elsewhere = {"Location": "https://127.0.0.1:1/elsewhere"}
    async with rig({"anna": [Reply(status, reason, elsewhere)]}) as r:
        answer = await r.send()
        assert answer.outcome is outcome
        assert answer.status == (201 if status == 200 else status)
        assert answer.reason == ("" if reason.startswith("<") or outcome is Outcome.DELIVERED else reason)
        assert bool(answer.retry_after_us) == (outcome in AGAIN)
        assert len(r.log.arrivals) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"code":410,"errno":106,"error":"Gone","message":"User has gone away"}', "errno_106"),
        (b'{"reason":"BadJwtToken"}', "BadJwtToken"),
        (b'{"errno":true,"reason":"two words"}', ""),
        (b'{"errno":' + b"9" * 5000 + b"}", ""),
        (b'{"errno":' + b"9" * 400 + b"}", ""),
        (b"push subscription has unsubscribed or expired.\n", ""),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_whatever_a_service_writes_is_borne(body: bytes, reason: str) -> None:
    """Apple's word and Mozilla's number are kept; prose, which may hold anything, is not; the status decides."""
    assert webpush_answers.read(410, {}, body) == Answer(Outcome.DEAD_TOKEN, 410, reason)


@pytest.mark.parametrize(
    ("status", "asked", "wait_s"), [(429, "5", 60), (429, "90", 90), (406, "5", 5), (503, "7", 7), (503, "", 10)]
)
async def test_retry_after_is_handed_on(rig: Callable[..., Any], status: int, asked: str, wait_s: int) -> None:
    """Retry-After is the caller's to wait, never slept; after a 429 it is a minute at least, as FCM asks."""
    async with rig({"anna": [Reply(status, "", {"Retry-After": asked})]}) as r:
        began = time.perf_counter()
        assert (await r.send()).retry_after_us == wait_s * SECOND
        assert time.perf_counter() - began < wait_s, "it is not slept"


# Whose fault a refusal of the sender is.


def other_key() -> str:
    return public_key(load_key(make_key()))


async def test_one_subscription_of_another_key_stops_nobody(rig: Callable[..., Any]) -> None:
    """A service that has taken our key refuses a subscription made for another one: final, for that one alone."""
    async with rig() as r:
        assert (await r.send("good")).outcome is Outcome.DELIVERED
        stale = r.device("stale", public_key=other_key())
        with capture_logs() as logs:
            answers = [await r.provider.send(dispatch(stale)) for _ in range(5)]
        assert {(a.outcome, a.status, a.reason) for a in answers} == {(Outcome.REJECTED, 403, "VapidPkHashMismatch")}
        assert {a.retry_after_us for a in answers} == {None}
        assert (await r.send("good")).outcome is Outcome.DELIVERED
        assert logs == []


async def test_apples_word_for_another_key_is_about_one_subscription(rig: Callable[..., Any]) -> None:
    """Apple says it by a 400: not known whose fault it is, until a subscription of our key was taken."""
    async with rig({"stale": [Reply(400, "VapidPkHashMismatch")]}) as r:
        answers = [await r.send("stale"), await r.send("good"), await r.send("stale")]
        assert [a.outcome for a in answers] == [Outcome.RETRY, Outcome.DELIVERED, Outcome.REJECTED]


async def test_the_first_refusals_are_tried_again(rig: Callable[..., Any]) -> None:
    """Of a service that has taken nothing yet, a few refusals may be theirs or ours: they cost attempts, no more."""
    async with rig() as r:
        stale = [r.device(f"stale{n}", public_key=other_key()) for n in range(STRANGERS)]
        for device in stale * 3:
            answer = await r.provider.send(dispatch(device))
            assert (answer.outcome, answer.retry_after_us) == (Outcome.RETRY, 60 * SECOND)
        assert (await r.send("good")).outcome is Outcome.DELIVERED
        assert {(await r.provider.send(dispatch(device))).outcome for device in stale} == {Outcome.REJECTED}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"key": make_key()}, "VapidPkHashMismatch"), ({"subject": "mailto:push@localhost"}, "BadJwtToken")],
)
async def test_a_wrong_key_is_our_fault(rig: Callable[..., Any], wrong: dict[str, str], reason: str) -> None:
    """Where a service refuses everybody, it is our key or subject: a FAULT, which burns nothing."""
    async with rig(**wrong) as r:
        with capture_logs() as logs:
            answers = [await r.send(f"b{n}") for n in range(STRANGERS + 3)]
        assert [a.outcome for a in answers] == [Outcome.RETRY] * STRANGERS + [Outcome.FAULT] * 3
        assert {(a.status, a.reason, a.retry_after_us) for a in answers} == {(403, reason, 60 * SECOND)}
        assert logs == []


async def test_a_key_that_is_revoked_burns_no_more_than_a_few(rig: Callable[..., Any]) -> None:
    """Also where our key was taken before, refusals of all in a row are our fault, until one is taken again."""
    async with rig() as r:
        assert (await r.send("good")).outcome is Outcome.DELIVERED
        stale = [r.device(f"stale{n}", public_key=other_key()) for n in range(STRANGERS + 2)]
        outcomes = [(await r.provider.send(dispatch(device))).outcome for device in stale]
        assert outcomes == [Outcome.REJECTED] * STRANGERS + [Outcome.FAULT] * 2
        assert (await r.send("good")).outcome is Outcome.DELIVERED
        assert (await r.provider.send(dispatch(stale[-1]))).outcome is Outcome.REJECTED


async def test_a_refused_clock_is_not_blamed_on_subscriptions(rig: Callable[..., Any]) -> None:
    """A new signature is judged afresh: one that a service finds expired is our fault, whatever it took before."""
    now = [time.time()]
    async with rig(server={"clock": lambda: now[0]}) as r:
        assert (await r.send("good")).outcome is Outcome.DELIVERED
        r.provider._vapid._clock = lambda: now[0] - 24 * 3600  # as if this machine's clock had been set back
        answers = [await r.send(f"b{n}") for n in range(STRANGERS + 1)]
        assert [a.outcome for a in answers] == [Outcome.RETRY] * STRANGERS + [Outcome.FAULT]


# Servers that are down, silent, or not to be talked to.


async def test_one_service_that_is_down_holds_up_no_other(rig: Callable[..., Any]) -> None:
    """A refused connection is UNSENT with a growing backoff for that origin alone; the others are served meanwhile."""
    async with rig() as up, rig() as down:
        provider = up.provider
        provider._hosts = (host(up.simulator), host(down.simulator))
        await down.simulator.close()
        first = await provider.send(dispatch(down.device()))
        held = await provider.send(dispatch(down.device("bert")))
        assert (first.outcome, first.reason) == (Outcome.UNSENT, "ClientConnectorError")
        assert (held.outcome, held.reason) == (Outcome.UNSENT, "Unreachable")
        assert 0 < held.retry_after_us <= first.retry_after_us <= 200_000
        assert (await provider.send(dispatch(up.device()))).outcome is Outcome.DELIVERED
        await down.simulator.start()
        skip(first.retry_after_us / SECOND)
        assert (await provider.send(dispatch(down.device()))).outcome is Outcome.DELIVERED


async def test_a_service_that_never_was_is_not_waited_for(rig: Callable[..., Any]) -> None:
    """Under a wildcard, what never answered costs attempts, so that no invented name is tried for ever."""
    async with rig() as r:
        wild = "*." + host(r.simulator).partition(".")[2]  # as *.0.0.1:port, under which the simulator is
        r.provider._hosts = (wild,)
        await r.simulator.close()
        for reason in ("ClientConnectorError", "Unreachable"):
            answer = await r.send()
            assert (answer.outcome, answer.reason) == (Outcome.RETRY, reason)
            assert answer.retry_after_us == 60 * SECOND
        late = await r.send(within_s=-1)
        assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
        await r.simulator.start()
        skip(0.25)
        assert (await r.send()).outcome is Outcome.DELIVERED
        await r.simulator.close()
        assert (await r.send()).outcome is Outcome.UNSENT


async def test_one_service_that_is_silent_holds_up_no_other(rig: Callable[..., Any]) -> None:
    """With every connection to one service waiting for its answer, another one is served at once."""
    async with rig() as up, rig(server={"latency_ms": 30_000}) as slow:
        provider = up.provider
        provider._hosts = (host(up.simulator), host(slow.simulator))
        waiting = [asyncio.create_task(provider.send(dispatch(slow.device(f"b{n}")))) for n in range(120)]
        await slow.log.reach(1)
        assert (await provider.send(dispatch(up.device()))).outcome is Outcome.DELIVERED
        assert not any(task.done() for task in waiting)
        await provider.close()
        assert {(await task).outcome for task in waiting} == {Outcome.UNKNOWN, Outcome.UNSENT}


async def test_strangers_names_fill_no_memory(rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription may name any server under an allowed domain: what is kept for each of them is bounded."""
    monkeypatch.setattr(http1, "MAX_BACKOFFS", 3)
    monkeypatch.setattr(crypto, "MAX_ORIGINS", 3)
    async with rig() as r:
        for n in range(10):
            r.provider._pool.has_reached(f"https://{n}.example.com")
            r.provider._vapid.authorization(f"https://{n}.example.com")
        assert len(r.provider._pool._backoffs) <= 3
        assert len(r.provider._vapid._made) <= 3
        assert (await r.send()).outcome is Outcome.DELIVERED


async def test_only_known_services_are_talked_to(rig: Callable[..., Any]) -> None:
    """A worker sends to no host that is not allowed, whatever a job says; without any said, to the browsers' own."""
    async with rig(hosts=KNOWN_HOSTS) as r:
        assert await r.send() == Answer(Outcome.REJECTED, reason="HostNotAllowed")
        for device in (r.device(), Device("webpush", "no subscription")):
            assert r.provider.service(device) == ""
            assert not await r.provider.probe(device)
        assert r.log.arrivals == []


async def test_what_cannot_be_sent_is_rejected_before_the_wire(rig: Callable[..., Any]) -> None:
    """A job that was written past the producer's checks is refused by the worker, and raises nothing."""
    async with rig() as r:
        assert (await r.send(webpush={"icon": 7})).reason.startswith("InvalidNotification: webpush.icon: ")
        assert (await r.send(body="x" * 4096)).reason == "PayloadTooLarge"
        wrong = await r.provider.send(dispatch(Device("webpush", "{}")))
        assert (wrong.outcome, wrong.reason) == (Outcome.REJECTED, "BadSubscription")
        assert r.log.arrivals == []


async def test_the_limit_is_the_same_here_and_there(rig: Callable[..., Any]) -> None:
    """3,993 bytes are sent and taken, as 4,096; one more is refused by the producer and by the worker."""
    async with rig() as r:
        spare = PAYLOAD_BYTES - len(payload(note(body="ü"))) + 2
        full, over = "ü" + "x" * (spare - 2), "ü" + "x" * (spare - 1)
        check_payload(note(devices=[r.device()], body=full))
        with pytest.raises(InvalidNotificationError, match="3994 bytes on the wire to webpush; at most 3993"):
            check_payload(note(devices=[r.device()], body=over))
        assert (await r.send(body=full)).outcome is Outcome.DELIVERED
        assert (await r.send(body=over)).reason == "PayloadTooLarge"
        assert len(r.log.arrivals) == 1


# The simulator.


def signed(keys: tuple[str, str], origin: str, **claims: Any) -> str:
    made = {"sub": SUBJECT, "aud": origin, "exp": int(time.time()) + 3600} | claims
    made = {name: value for name, value in made.items() if value is not None}
    return f"vapid t={jwt.encode(made, load_key(keys[0]), 'ES256')}, k={keys[1]}"


async def test_the_simulator_checks_who_sends(rig: Callable[..., Any], keys: tuple[str, str]) -> None:
    """Without a fresh signature by the subscription's key, for this very service, nothing is taken."""
    far = int(time.time()) + 25 * 3600
    cases: list[tuple[Callable[[str], str], int, str]] = [
        (lambda url: signed(keys, url), 201, ""),
        (lambda url: "VAPID " + signed(keys, url)[6:].replace(", ", ","), 201, ""),
        (lambda _: "", 401, "MissingAuthorization"),
        (lambda url: signed(keys, url).partition(",")[0], 401, "MissingAuthorization"),
        (lambda url: signed(keys, url).replace("vapid", "WebPush"), 401, "MissingAuthorization"),
        (lambda url: signed(keys, url + "/"), 403, "BadJwtToken"),
        (lambda url: signed(keys, url, exp=far), 403, "BadJwtToken"),
        (lambda url: signed(keys, url, exp=1), 403, "BadJwtToken"),
        (lambda url: signed(keys, url, exp=None), 403, "BadJwtToken"),
        (lambda url: signed(keys, url, sub="push@example.com"), 403, "BadJwtToken"),
        (lambda url: signed((make_key(), keys[1]), url), 403, "BadJwtToken"),
        (lambda url: signed((keys[0], other_key()), url), 403, "VapidPkHashMismatch"),
    ]
    async with rig() as r, aiohttp.ClientSession() as session:
        body = encrypt(read_subscription(r.device().token), b"{}")
        good = {"TTL": "60", "Content-Encoding": "aes128gcm"}
        for number, (authorization, status, reason) in enumerate(cases):
            given = good | {"Authorization": authorization(r.simulator.url)}
            url = f"{r.simulator.url}/push/anna"
            async with session.post(url, data=body, headers=given, ssl=r.provider._pool.tls) as answer:
                said = {} if answer.status == 201 else await answer.json()
                assert (number, answer.status, said.get("reason", "")) == (number, status, reason)
        r.simulator.expire_tokens()
        assert (await r.send("bert")).outcome is Outcome.DELIVERED
        r.simulator.expire_tokens()
        assert (await r.send("bert")).outcome is Outcome.REJECTED


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"TTL": ""}, 400, "BadTtl"),
        ({"TTL": "1.5"}, 400, "BadTtl"),
        ({"TTL": "2592001"}, 400, "BadTtl"),
        ({"Urgency": "urgent"}, 400, "BadUrgency"),
        ({"Topic": "a" * 33}, 400, "BadWebPushTopic"),
        ({"Topic": "new_event"}, 400, "BadWebPushTopic"),
        ({"Topic": "neu!"}, 400, "BadWebPushTopic"),
        ({"Content-Encoding": "aesgcm"}, 400, "BadContentEncoding"),
        ({"Content-Encoding": "aes128gcm", "Topic": "newEvent", "Urgency": "very-low", "TTL": "0"}, 201, ""),
    ],
)
async def test_the_simulator_checks_the_headers(
    rig: Callable[..., Any], keys: tuple[str, str], change: dict[str, str], status: int, reason: str
) -> None:
    """A missing TTL, an unknown urgency, a topic that is no base64url, another encoding: each is refused."""
    async with rig() as r, aiohttp.ClientSession() as session:
        given = {"TTL": "60", "Content-Encoding": "aes128gcm", "Authorization": signed(keys, r.simulator.url)}
        body = encrypt(read_subscription(r.device().token), b"{}")
        url = f"{r.simulator.url}/push/anna"
        async with session.post(url, data=body, headers=given | change, ssl=r.provider._pool.tls) as answer:
            said = {} if answer.status == 201 else await answer.json()
            assert (answer.status, said.get("reason", "")) == (status, reason)


async def test_the_simulator_reads_the_body(rig: Callable[..., Any], keys: tuple[str, str]) -> None:
    """4,097 bytes are too many; what another browser was to read, or nobody, is refused; so is an unknown path."""
    async with rig() as r, aiohttp.ClientSession() as session:
        mine, other = (read_subscription(r.device(name).token) for name in ("anna", "bert"))
        cases = [
            ("/push/anna", encrypt(mine, b" " * (PAYLOAD_BYTES - 2) + b"{}"), 201),
            ("/push/anna", encrypt(mine, b" " * (PAYLOAD_BYTES - 1) + b"{}"), 413),
            ("/push/anna", encrypt(other, b"{}"), 400),
            ("/push/anna", encrypt(mine, b"no JSON"), 400),
            ("/push/anna", b"", 400),
            ("/push/a.b", encrypt(mine, b"{}"), 404),
        ]
        given = {"TTL": "60", "Content-Encoding": "aes128gcm", "Authorization": signed(keys, r.simulator.url)}
        for path, body, status in cases:
            url = r.simulator.url + path
            async with session.post(url, data=body, headers=given, ssl=r.provider._pool.tls) as answer:
                assert (path, len(body), answer.status) == (path, len(body), status)


async def test_a_page_can_subscribe_at_the_simulator(rig: Callable[..., Any]) -> None:
    """POST /subscribe/NAME is a subscription, with the caller's own key if it gives one; what is no key is refused."""
    async with rig() as r, aiohttp.ClientSession() as session:
        url = f"{r.simulator.url}/subscribe/carla"
        for key, outcome in (("", Outcome.DELIVERED), (other_key(), Outcome.REJECTED)):
            async with session.post(url, data=key, ssl=r.provider._pool.tls) as answer:
                token = await answer.text()
                assert answer.status == 201
            assert (await r.provider.send(dispatch(Device("webpush", token)))).outcome is outcome
        async with session.post(url, data="no key", ssl=r.provider._pool.tls) as answer:
            assert answer.status == 400
