"""FCM, its token endpoint and Web Push against servers that break HTTP/1.1: rows as in test_hostile_http2.py."""

import asyncio
import json
import math
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from notifier.notification import Device, Notification
from notifier.notification.subscription import read_subscription
from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from notifier.providers.fcm.provider import FcmProvider
from notifier.providers.transport.http1 import Pool, tls_context
from notifier.providers.webpush.provider import WebPushProvider
from notifier.simulators.certificates import Certificates, make_certificates
from notifier.simulators.fcm import make_service_account
from notifier.simulators.webpush_browser import subscription
from tests.harness.sections import section
from tests.hostile.servers import H1Peer, HostileServer, Request, head, serve_http1_well
from tests.hostile.suffering import Story, judge, suffer

LONG_S, SHORT_S = 20.0, 1.0
DELIVERED, UNKNOWN, UNSENT, FAULT = {"delivered"}, {"unknown"}, {"unsent"}, {"fault"}
GONE = b'{"error": {"status": "NOT_FOUND", "details": [{"errorCode": "UNREGISTERED"}]}}'
BY = ("fcm", "webpush", "token")
BOMB = zlib.compress(bytes(20_000_000), wbits=31)


Script = Callable[[H1Peer, Request], None]


@dataclass(frozen=True)
class Row:
    """script: what is answered to a request. outcomes: all that a send may answer, by the platform.

    waves: how many times all are sent while the server is hostile; between them connections are idle.
    """

    script: Script
    outcomes: dict[str, set[str]]
    timeout_s: float = LONG_S
    flood: bool = False
    waves: int = 1
    name: str = ""


ROWS: list[Row] = []


def row(*expected: set[str], timeout_s: float = LONG_S, flood: bool = False, waves: int = 1) -> Callable[..., None]:
    """Add a row whose server does it. expected: of FCM, of Web Push and of the token endpoint, or of the first ones."""

    def add(script: Script, name: str = "") -> None:
        outcomes = dict(zip(BY, expected, strict=False))
        ROWS.append(Row(script, outcomes, timeout_s, flood, waves, name or script.__name__))

    return add


# Bytes that nobody asked for.


@row(DELIVERED, DELIVERED, waves=2)
def a_stale_404_on_an_idle_connection(peer: H1Peer, request: Request) -> None:
    peer.send(peer.good(request))
    time.sleep(0.05)
    peer.send(head(b"404 Not Found", b"Content-Length: %d" % len(GONE)) + GONE)


@row(DELIVERED, DELIVERED, waves=2)
def a_stale_200_on_an_idle_connection(peer: H1Peer, request: Request) -> None:
    peer.send(peer.good(request))
    time.sleep(0.05)
    peer.send(peer.good(Request(request.path, "nobody")))


@row(DELIVERED, DELIVERED, waves=2)
def half_an_answer_on_an_idle_connection(peer: H1Peer, request: Request) -> None:
    peer.send(peer.good(request))
    time.sleep(0.05)
    peer.send(b"HTTP/1.1 410 Gone\r\nContent-")


@row(DELIVERED, DELIVERED, DELIVERED, waves=2)
def two_answers_at_once(peer: H1Peer, request: Request) -> None:
    peer.send(peer.good(request) + head(b"404 Not Found", b"Content-Length: %d" % len(GONE)) + GONE)


@row(DELIVERED, DELIVERED, flood=True)
def answers_without_end(peer: H1Peer, request: Request) -> None:
    peer.send(peer.good(request))
    peer.flood(head(b"200 OK", b"Content-Length: 0"))


# Wrong heads and bodies, and answers that two readers may read in two ways.


def says(text: bytes = b"", status: int = 0, *, flood: bytes = b"", trickle: bytes = b"", cut: bool = False) -> Script:
    """Send this in place of an answer, and then what has no end. status: of the answer that somebody may see in it."""

    def script(peer: H1Peer, request: Request) -> None:
        if status:
            peer.server.answered[request.name].append(status)
        peer.send(text)
        if flood:
            peer.flood(flood)
        while trickle and not peer.server.healed.is_set():
            peer.send(trickle)
            time.sleep(0.1)
        if cut:
            peer.reset()

    return script


EITHER = UNKNOWN | DELIVERED
CHUNKED = head(b"200 OK", b"Transfer-Encoding: chunked")
NAMED = b'{"name": "projects/p/messages/1"}'
SAID: dict[str, tuple[list[set[str]], Script]] = {
    "a status of 5,000 digits": (
        [UNKNOWN, UNKNOWN, UNSENT], says(head(b"9" * 5000 + b" What", b"Content-Length: 0"))),
    "a status of letters": ([UNKNOWN, UNKNOWN], says(head(b"abc What", b"Content-Length: 0"))),
    "no HTTP at all": ([UNKNOWN], says(b"\x00\xff" * 1000)),
    "a field of 100 kilobytes": ([UNKNOWN], says(head(b"200 OK", b"X: " + b"y" * 100_000, b"Content-Length: 0"))),
    "two lengths": ([UNKNOWN], says(head(b"200 OK", b"Content-Length: 1", b"Content-Length: 2") + b"xy")),
    "a length of 5,000 digits": ([UNKNOWN], says(head(b"200 OK", b"Content-Length: " + b"9" * 5000))),
    "an answer without a head": ([UNKNOWN, UNKNOWN, UNSENT], says(NAMED + b"\r\n\r\n")),
    "a length and chunks": (
        [EITHER, EITHER],
        says(head(b"200 OK", b"Content-Length: 3", b"Transfer-Encoding: chunked")
             + b'1e\r\n{"name": "projects/p/messages/"}\r\n0\r\n\r\n', 200)),
    "a negative length": ([UNKNOWN], says(head(b"200 OK", b"Content-Length: -1") + b"{}", 200)),
    "a length in other digits": ([UNKNOWN], says(head(b"200 OK", "Content-Length: ٢".encode()) + b"{}", 200)),
    # What is over its length belongs to no answer: it must not be the next one's.
    "a length that is too short": (
        [UNKNOWN, EITHER, UNSENT], says(head(b"200 OK", b"Content-Length: 1") + NAMED, 200)),
    "a field without a colon": ([UNKNOWN, EITHER], says(head(b"200 OK", b"What", b"Content-Length: 2") + b"{}", 200)),
    "a zero in a field": ([UNKNOWN, EITHER], says(head(b"200 OK", b"X: a\0b", b"Content-Length: 2") + b"{}", 200)),
    "chunks of no size": (
        [UNKNOWN, EITHER, UNSENT], says(CHUNKED + b"-5\r\nxxxxx\r\nffffffffffffffffff\r\nx", 200)),
    "a body that is cut": (
        [UNKNOWN, DELIVERED, UNSENT], says(head(b"200 OK", b"Content-Length: 1000") + b"{", 200, cut=True)),
    "a 404 whose body is cut": (
        [FAULT, {"dead_token"}], says(head(b"404 Not Found", b"Content-Length: 1000") + b"{", 404, cut=True)),
    "a crash": ([UNKNOWN, UNKNOWN, UNSENT], says(cut=True)),
}  # fmt: skip
FLOODS: dict[str, tuple[list[set[str]], Script]] = {
    "fields without end": ([UNKNOWN, UNKNOWN, UNSENT], says(b"HTTP/1.1 200 OK\r\n", flood=b"X-Another: one\r\n")),
    "hints without end": ([UNKNOWN, UNKNOWN, UNSENT], says(flood=head(b"103 Early Hints"))),
    "trailers without end": (
        [EITHER, EITHER, UNSENT], says(CHUNKED + b"2\r\n{}\r\n0\r\n", 200, flood=b"X-Another: one\r\n")),
    "a chunk whose size does not end": ([EITHER, EITHER, UNSENT], says(CHUNKED, 200, flood=b"0" * 1000)),
    "a body without end": (
        [UNKNOWN, DELIVERED, UNSENT], says(head(b"200 OK", b"Content-Type: text/html"), 200, flood=b"x" * 1000)),
    "chunks without end": (
        [UNKNOWN, DELIVERED, UNSENT], says(CHUNKED, 200, flood=b"64\r\n" + b"x" * 100 + b"\r\n")),
}  # fmt: skip
SLOW: dict[str, tuple[list[set[str]], Script]] = {
    "an upgrade": (
        [UNKNOWN],
        says(head(b"101 Switching Protocols", b"Connection: upgrade", b"Upgrade: something") + b"x" * 1000)),
    "chunks that trickle": ([UNKNOWN, DELIVERED], says(CHUNKED, 200, trickle=b"1\r\nx\r\n")),
    "a body byte by byte": (
        [UNKNOWN, DELIVERED, UNSENT], says(head(b"200 OK", b"Content-Length: 1000"), 200, trickle=b"x")),
    "a head byte by byte": ([UNKNOWN, UNKNOWN, UNSENT], says(trickle=b"H")),
}  # fmt: skip
for table, options in ((SAID, {}), (FLOODS, {"flood": True}), (SLOW, {"timeout_s": SHORT_S})):
    for name, (expected, script) in table.items():
        row(*expected, **options)(script, name)


@row(FAULT, {"rejected"}, FAULT)
def a_redirect_to_itself(peer: H1Peer, request: Request) -> None:
    peer.send(peer.answer(request, 307, b"", b"Location: " + request.path.encode()))


# Odd, and right.


@row(DELIVERED, DELIVERED, DELIVERED)
def hints_before_the_answer(peer: H1Peer, request: Request) -> None:
    peer.send(head(b"103 Early Hints", b"Link: </a>") * 3 + peer.good(request))


@row(DELIVERED, DELIVERED, DELIVERED)
def go_on_before_the_answer(peer: H1Peer, request: Request) -> None:
    peer.send(head(b"100 Continue") + peer.good(request))


@row(DELIVERED, DELIVERED, DELIVERED)
def chunks_with_trailers(peer: H1Peer, request: Request) -> None:
    whole = peer.good(request)
    first, _, body = whole.partition(b"\r\n\r\n")
    kept = b"\r\n".join(line for line in first.split(b"\r\n") if not line.startswith(b"Content-Length"))
    chunks = b"".join(
        b"%x;name=value\r\n%s\r\n" % (len(body[n : n + 7]), body[n : n + 7]) for n in range(0, len(body), 7)
    )
    peer.send(kept + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-After: all\r\n\r\n")


@row(DELIVERED, DELIVERED, DELIVERED)
def an_answer_byte_by_byte(peer: H1Peer, request: Request) -> None:
    for byte in peer.good(request):
        peer.send(bytes((byte,)))


@row(DELIVERED, DELIVERED, DELIVERED)
def a_body_that_ends_with_its_connection(peer: H1Peer, request: Request) -> None:
    first, _, body = peer.good(request).partition(b"\r\n\r\n")
    kept = b"\r\n".join(line for line in first.split(b"\r\n") if not line.startswith(b"Content-Length"))
    peer.send(kept + b"\r\n\r\n" + body)
    peer.sock.unwrap()
    peer.sock.close()


@row(DELIVERED, DELIVERED, DELIVERED | UNKNOWN, waves=2)  # after a token the end may cross with a first message
def an_end_after_each_answer(peer: H1Peer, request: Request) -> None:
    """The server closes what it did not say that it would close: the next request goes by another connection."""
    peer.send(peer.good(request))
    peer.sock.unwrap()
    peer.sock.close()


@row(DELIVERED | UNKNOWN, DELIVERED | UNKNOWN, DELIVERED | UNKNOWN, waves=2)
def a_crash_after_each_answer(peer: H1Peer, request: Request) -> None:
    peer.send(peer.good(request))
    time.sleep(0.05)
    peer.reset()


@row(FAULT, {"rejected"}, FAULT)
def a_redirect_to_elsewhere(peer: H1Peer, request: Request) -> None:
    """Nobody goes where a server points: there is nothing at that address but this machine's own."""
    peer.send(peer.answer(request, 302, b"", b"Location: https://127.0.0.1:1/secret", b"Set-Cookie: a=b"))


@row(UNKNOWN, DELIVERED, UNSENT)
def a_small_file_that_unpacks_to_a_large_one(peer: H1Peer, request: Request) -> None:
    peer.send(peer.answer(request, 200, BOMB, b"Content-Encoding: gzip"))


# No answers.


@row(UNKNOWN, UNKNOWN, UNSENT, timeout_s=SHORT_S)
def silence(peer: H1Peer, _: Request) -> None:
    peer.server.healed.wait(20)


@row(UNKNOWN, UNKNOWN, UNSENT)
def the_end(peer: H1Peer, _: Request) -> None:
    peer.sock.unwrap()
    peer.sock.close()


# What a token endpoint alone can do.


def fetched(text: str) -> Script:
    def script(peer: H1Peer, request: Request) -> None:
        peer.send(peer.answer(request, 200, text.encode()))

    return script


TOKENS = {
    "a line break in a token": ('{"access_token": "a\\r\\nX-Evil: 1", "expires_in": 3600}', FAULT),
    "a blank in a token": ('{"access_token": "a b", "expires_in": 3600}', FAULT),
    "a token of other letters": ('{"access_token": "ключ", "expires_in": 3600}', FAULT),
    "a token of 10,000 letters": (json.dumps({"access_token": "x" * 10_000}), FAULT),
    "a token that is a number": ('{"access_token": 7, "expires_in": 3600}', UNSENT),
    "an empty token": ('{"access_token": "", "expires_in": 3600}', UNSENT),
    "a token for ever": ('{"access_token": "a", "expires_in": 1e999}', DELIVERED),
    "a token for a moment": ('{"access_token": "a", "expires_in": -5}', DELIVERED),
    "a list of tokens": ('["access_token"]', UNSENT),
    "brackets without end": ("[" * 10_000, UNSENT),
}
ROWS += [Row(fetched(text), {"token": outcome}, name=name) for name, (text, outcome) in TOKENS.items()]
CASES = [(what, by) for what in ROWS for by in what.outcomes]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = make_service_account(tmp_path_factory.mktemp("account"), "https://127.0.0.1:1/token", "p")
    return json.loads(path.read_text())


class Stage:
    """A provider at a hostile server, and what is sent by it."""

    def __init__(self, by: str, server: HostileServer, certificates: Certificates, account: Any, timeout_s: float):
        self.by, self.server = by, server
        options: dict[str, Any] = {"ca_file": certificates.ca_file, "timeout_us": round(timeout_s * 1e6)}
        if by == "webpush":
            self.devices = [Device("webpush", subscription(server.url, f"browser-{n}")) for n in range(100)]
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
            hosts = [f"127.0.0.1:{server.port}"]
            settings = section("webpush", subject="mailto:a@example.com", hosts=hosts, **options)
            self.provider: Provider = WebPushProvider(settings, pem)
        else:
            self.devices = [Device("fcm", f"device-{n}") for n in range(100)]
            told = {**account, "token_uri": f"{server.url}/token"}
            self.provider = FcmProvider(section("fcm", endpoint=server.url, **options), told)

    def name(self, n: int) -> str:
        token = self.devices[n].token
        return read_subscription(token).endpoint.removeprefix(self.server.url) if self.by == "webpush" else token

    def dispatch(self, n: int) -> Dispatch:
        notification = Notification(user="u", devices=[self.devices[n]], title="Hello")
        send_by = asyncio.get_running_loop().time() + 30
        return Dispatch(f"job-{n}", self.devices[n], notification, None, send_by)

    def healed(self) -> None:
        """A refused account is asked for again after a minute; nobody waits for it here."""
        if isinstance(self.provider, FcmProvider):
            self.provider._tokens._backoff.hold(0.0)


def play(what: Row, by: str, certificates: Certificates, account: Any) -> Story:
    def script(peer: H1Peer) -> None:
        for request in peer.requests():
            if (request.path == "/token") == (by == "token"):
                what.script(peer, request)
            else:
                peer.send(peer.good(request))

    async def run() -> Story:
        with HostileServer(certificates, script, serve_http1_well, H1Peer) as server:
            stage = Stage(by, server, certificates, account, what.timeout_s)
            story = await suffer(
                server, stage.provider, stage.dispatch, flooded=what.flood, waves=what.waves, healed=stage.healed
            )
            judge(story, server, stage.name)
            assert server.hung_up.is_set() == what.flood
            return story

    return asyncio.run(run())


@pytest.fixture(scope="module", autouse=True)
def _warm(certificates: Certificates, account: Any) -> None:
    """What is imported and cached at a first send is none of a row's memory."""
    for by in ("fcm", "webpush"):
        play(Row(lambda peer, request: peer.send(peer.good(request)), {}), by, certificates, account)


@pytest.mark.parametrize(("what", "by"), CASES, ids=[f"{by}-{what.name}" for what, by in CASES])
def test_a_hostile_server_stops_nobody(what: Row, by: str, certificates: Certificates, account: Any) -> None:
    """Each send has one answer that is true, nothing is lost, and soon after the server heals all goes again."""
    before = threading.active_count()
    story = play(what, by, certificates, account)
    assert story.outcomes <= what.outcomes[by] | (UNKNOWN | UNSENT if what.timeout_s == SHORT_S else set())
    assert threading.active_count() <= before, "no thread outlives its provider"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
async def test_a_request_that_http_cannot_carry_raises_nothing(value: str, certificates: Certificates) -> None:
    """Who built it is to see to it that no header has a line break; nothing arrives, whatever it is."""
    with HostileServer(certificates, serve_http1_well, serve_http1_well, H1Peer) as server:
        pool = Pool("fcm", tls=tls_context(certificates.ca_file, "ca"), timeout_s=LONG_S, max_connections=2)
        until = asyncio.get_running_loop().time() + 30
        answers = [
            await pool.post(f"{server.url}/x", b"", {"Authorization": value}, origin=server.url, send_by=until)
            for _ in range(3)
        ]
        await pool.close()
        assert not server.arrived
    assert {(a.outcome, a.reason) for a in answers} == {(Outcome.UNKNOWN, "ValueError")}


async def test_a_request_that_timed_out_is_cut(certificates: Certificates) -> None:
    """What a request that was given up still had to send does not arrive: its connection is reset, not closed."""
    ends: list[str] = []
    ended = threading.Event()

    def script(peer: H1Peer) -> None:
        next(peer.requests())
        try:
            ends.append(repr(socket.socket.recv(peer.sock, 1)))  # below TLS, which takes a reset for an end
        except OSError as error:
            ends.append(type(error).__name__)
        ended.set()

    with HostileServer(certificates, script, serve_http1_well, H1Peer) as server:
        pool = Pool("fcm", tls=tls_context(certificates.ca_file, "ca"), timeout_s=SHORT_S, max_connections=2)
        until = asyncio.get_running_loop().time() + 30
        answer = await pool.post(f"{server.url}/x", b"", {}, origin=server.url, send_by=until)
        assert isinstance(answer, Answer)
        assert (answer.outcome, answer.reason) == (Outcome.UNKNOWN, "Timeout")
        await asyncio.to_thread(ended.wait, 20)
        await pool.close()
    assert ends == ["ConnectionResetError"]


@pytest.mark.parametrize(("timeout_s", "left_s"), [(2.0, 1.1), (8.0, 1.45)])
def test_who_is_not_connected_in_time_is_away(certificates: Certificates, timeout_s: float, left_s: float) -> None:
    """Also where a lease leaves less than the timeout: beside the longest one it leaves a second and a half."""

    async def run() -> None:
        pool = Pool("fcm", tls=tls_context(certificates.ca_file, "ca"), timeout_s=timeout_s, max_connections=2)
        until = asyncio.get_running_loop().time() + left_s
        answer = await pool.post(f"{origin}/x", b"", {}, origin=origin, send_by=until)
        assert isinstance(answer, Answer)
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "ConnectionTimeoutError")
        assert pool.unsent(origin, math.inf) is not None
        await pool.close()

    with socket.create_server(("127.0.0.1", 0)) as nobody:  # connected by the kernel, and then nothing comes
        origin = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        asyncio.run(run())


def test_nothing_reads_aiohttp_from_elsewhere() -> None:
    """What is used of aiohttp's inside is named in one module, and is still there."""
    import aiohttp  # noqa: PLC0415
    from aiohttp.client_proto import ResponseHandler  # noqa: PLC0415

    source = Path("notifier/providers/transport/http1_connections.py").read_text(encoding="utf-8")
    assert {"_factory", "_release"} <= set(source.replace("(", " ").replace(".", " ").split())
    assert hasattr(aiohttp.BaseConnector, "_release")
    assert hasattr(ResponseHandler, "should_close")
