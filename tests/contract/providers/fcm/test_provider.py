"""The FCM provider against the FCM simulator: real TLS, real tokens, real refusals."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification
from notifier.providers.build import Build
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.fcm import answers as fcm_answers
from notifier.providers.fcm.payload import MAX_TTL_S, PAYLOAD_BYTES, payload_size
from notifier.providers.fcm.platform import Fcm
from notifier.providers.fcm.provider import FcmProvider
from notifier.providers.fcm.settings import FcmSettings
from notifier.providers.transport.backoff import Backoff
from notifier.providers.transport.http1_connections import MAX_ANSWERS
from notifier.simulators.certificates import Certificates, make_certificates
from notifier.simulators.checks.fcm import counted_bytes, is_valid
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.wire import Arrival, Reply, Scripts, WireLog
from tests.contract.wire_log import Log
from tests.harness.patient_loop import skip
from tests.harness.sections import section
from workers.sending.circuits import JITTER, PROBE_US

AGAIN = {Outcome.RETRY, Outcome.REFUSED, Outcome.BUSY, Outcome.FULL, Outcome.UNKNOWN, Outcome.FAULT}
TOKEN = "device-token:0123456789abcdef"
PROJECT = "demo-project"
SECOND = 1_000_000


@dataclass(frozen=True)
class Rig:
    provider: FcmProvider
    simulator: FcmSimulator
    log: Log


@pytest.fixture(scope="module")
def account_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_service_account(tmp_path_factory.mktemp("account"), "https://127.0.0.1:1/token", PROJECT)


@pytest.fixture(scope="module")
def account(account_file: Path) -> dict[str, str]:
    return json.loads(account_file.read_text())


@pytest.fixture(scope="module")
def offline(account: dict[str, str]) -> FcmProvider:
    return FcmProvider(FcmSettings(), account)


@pytest.fixture
def rig(certificates: Certificates, account: dict[str, str], account_file: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(scripts: Scripts | None = None, *, latency_ms: float = 0, **options: Any) -> AsyncIterator[Rig]:
        log = Log()
        simulator = FcmSimulator(certificates=certificates, log=log, scripts=scripts, latency_ms=latency_ms)
        simulator.trust(account_file)
        await simulator.start()
        told = options.pop("service_account", account) | {"token_uri": f"{simulator.url}/token"}
        max_connections = options.pop("max_connections", 100)
        settings = section("fcm", **{"endpoint": simulator.url, "ca_file": certificates.ca_file} | options)
        provider = FcmProvider(settings, told, max_connections=max_connections)
        try:
            yield Rig(provider, simulator, log)
        finally:
            await provider.close()
            await simulator.close()

    return make


def dispatch(token: str = TOKEN, *, within_s: float = 10, ttl_us: int | None = None, **fields: Any) -> Dispatch:
    device = Device("fcm", token)
    fields = {"user": "7", "devices": [device], "title": "Hello", "body": "World"} | fields
    send_by = asyncio.get_running_loop().time() + within_s
    return Dispatch("job-1", device, Notification(**fields), ttl_us, send_by)


def message_of(provider: FcmProvider, asked: Dispatch) -> dict[str, Any]:
    return json.loads(provider._messages.build(asked))["message"]


ROWS = [
    (200, "", Outcome.DELIVERED),
    (404, "UNREGISTERED", Outcome.DEAD_TOKEN),
    (404, "NOT_FOUND", Outcome.FAULT),
    (400, "INVALID_ARGUMENT", Outcome.REJECTED),
    (403, "SENDER_ID_MISMATCH", Outcome.REJECTED),
    (403, "PERMISSION_DENIED", Outcome.FAULT),
    (401, "THIRD_PARTY_AUTH_ERROR", Outcome.REFUSED),
    (429, "QUOTA_EXCEEDED", Outcome.BUSY),
    (500, "INTERNAL", Outcome.UNKNOWN),
    (503, "UNAVAILABLE", Outcome.UNKNOWN),
    (502, "<html>Bad gateway</html>", Outcome.UNKNOWN),
    (200, "<html>Sign in to this network</html>", Outcome.UNKNOWN),
    (405, "<html>Method not allowed</html>", Outcome.FAULT),
    (302, "<html>Moved</html>", Outcome.FAULT),
]


@pytest.mark.parametrize(("status", "reason", "outcome"), ROWS)
async def test_answers_follow_the_table(rig: Callable[..., Any], status: int, reason: str, outcome: Outcome) -> None:
    """Each answer of FCM has its one outcome, keeps FCM's own errorCode and costs one request."""
    async with rig({TOKEN: [Reply(status, reason, {"Location": "/elsewhere"})]}) as r:
        answer = await r.provider.send(dispatch())
        assert (answer.outcome, answer.status) == (outcome, status)
        if not reason.startswith("<"):
            assert answer.reason == reason
        assert (answer.retry_after_us is not None) == (outcome in AGAIN)
        assert len(r.log.arrivals) == 1


def in_an_hour() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)


@pytest.mark.parametrize(
    ("reply", "at_least_s", "at_most_s"),
    [
        (Reply(429, "QUOTA_EXCEEDED", {"Retry-After": "5"}), 60, 60),
        # Counted from when the tests were collected, which may be some minutes ago.
        (Reply(429, "QUOTA_EXCEEDED", {"Retry-After": in_an_hour()}), 1800, 3600),
        (Reply(503, "UNAVAILABLE", {"Retry-After": "7"}), 7, 7),
    ],
)
async def test_retry_after_is_handed_on_and_never_slept(
    rig: Callable[..., Any], reply: Reply, at_least_s: int, at_most_s: int
) -> None:
    """Retry-After is the caller's to wait, in both its forms: the send ends at once after one request.

    Which wait follows from which answer: unit/providers/test_answers.py.
    """
    async with rig({TOKEN: [reply]}) as r:
        began = time.perf_counter()
        answer = await r.provider.send(dispatch())
        assert time.perf_counter() - began < at_least_s, "it is not slept"
        assert at_least_s * SECOND <= answer.retry_after_us <= at_most_s * SECOND
        assert len(r.log.arrivals) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"error": []}',
        b'{"error": {"details": {}}}',
        b'{"error": {"details": [1, {"errorCode": 5}], "status": 7}}',
        b"[" * 100_000,
    ],
)
def test_odd_bodies_are_borne(body: bytes) -> None:
    """No body makes the reading of an answer raise; the status still decides."""
    assert fcm_answers.read(404, {}, body) == Answer(Outcome.FAULT, 404, "", 60 * SECOND)
    assert fcm_answers.read(200, {}, body).outcome is Outcome.UNKNOWN


QUOTA = {"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": "QUOTA_EXCEEDED"}
FAILURE = "type.googleapis.com/google.rpc.QuotaFailure"


@pytest.mark.parametrize(
    ("details", "outcome"),
    [
        ([QUOTA], Outcome.BUSY),
        ([QUOTA, {"@type": FAILURE, "violations": [{"subject": "device", "description": "rate"}]}], Outcome.BUSY),
        ([QUOTA, {"@type": FAILURE, "violations": [{"subject": "project:7", "description": "rate"}]}], Outcome.FULL),
        ([{"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "SendsPerMinutePerProject"}}], Outcome.FULL),
        ([{"reason": "RESOURCE_QUOTA_EXCEEDED", "domain": "googleapis.com"}], Outcome.FULL),
        ([], Outcome.FULL),
        (None, Outcome.FULL),
        ([{"violations": 7}, {"violations": [None]}, QUOTA], Outcome.BUSY),
    ],
)
def test_whose_quota_it_is(details: Any, outcome: Outcome) -> None:
    """A 429 is about the message's device where FCM itself says so, about the project where Google's front end does."""
    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}
    answer = fcm_answers.read(429, {"retry-after": "90"}, json.dumps({"error": error}).encode())
    assert (answer.outcome, answer.retry_after_us) == (outcome, 90 * SECOND)


async def test_a_device_gets_its_messages_in_order(rig: Callable[..., Any]) -> None:
    """Law 4: sends to one device arrive in the order of the calls, though many connections are open.

    Each waits for the answer to the one before.
    """
    async with rig(max_connections=20) as r:
        await asyncio.gather(*(r.provider.send(dispatch(f"{TOKEN}{n}")) for n in range(20)))  # opens them
        answered, before = 0, []

        async def one(n: int) -> None:
            nonlocal answered
            await r.provider.send(dispatch(data={"n": str(n)}))
            answered += 1

        r.log.watch(lambda arrival: before.append((int(arrival.data["n"]), answered)))
        await asyncio.gather(*(one(n) for n in range(40)))
        assert before == [(n, n) for n in range(40)]


async def test_many_sends_share_connections_and_one_token(rig: Callable[..., Any]) -> None:
    """200 sends at 100 in flight use at most `max_connections` connections and one token fetch."""
    async with rig(max_connections=20) as r:
        free = asyncio.Semaphore(100)

        async def one(n: int) -> Answer:
            async with free:
                return await r.provider.send(dispatch(f"{TOKEN}{n}"))

        answers = await asyncio.gather(*(one(n) for n in range(200)))
        assert Counter(a.outcome for a in answers) == {Outcome.DELIVERED: 200}
        assert len(r.log.arrivals) == 200
        assert len(r.simulator.connections) <= 20
        assert r.simulator.token_fetches == 1


async def test_a_connection_carries_any_number_of_sends(rig: Callable[..., Any]) -> None:
    """The bounds of what a server may say to one request count anew for the next."""
    async with rig(max_connections=1) as r:
        answers = [await r.provider.send(dispatch()) for _ in range(2 * MAX_ANSWERS)]
        assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
        assert len(r.simulator.connections) == 1


async def test_a_token_found_expired_is_fetched_once(rig: Callable[..., Any]) -> None:
    """50 sends that find the access token at its end wait for one fetch, and all are delivered."""
    async with rig() as r:
        await r.provider.send(dispatch())
        r.provider._tokens._usable_until = r.provider._tokens._renew_at = 0.0
        answers = await asyncio.gather(*(r.provider.send(dispatch()) for _ in range(50)))
        assert {a.outcome for a in answers} == {Outcome.DELIVERED}
        assert r.simulator.token_fetches == 2
        r.provider._tokens._usable_until = r.provider._tokens._renew_at = 0.0
        await r.provider.close()
        assert (await r.provider.send(dispatch())).reason == "Closed", "it is no trouble of the token endpoint's"


async def test_a_token_refused_by_fcm_is_replaced_once(rig: Callable[..., Any]) -> None:
    """50 sends whose proven token FCM no longer takes were not processed; one fetch serves all that follow."""
    async with rig() as r:
        await r.provider.send(dispatch())
        r.simulator.expire_tokens()
        answers = await asyncio.gather(*(r.provider.send(dispatch(f"{TOKEN}{n}")) for n in range(50)))
        assert {(a.outcome, a.reason) for a in answers} == {(Outcome.UNSENT, "UNAUTHENTICATED")}
        answers = await asyncio.gather(*(r.provider.send(dispatch()) for _ in range(50)))
        assert {a.outcome for a in answers} == {Outcome.DELIVERED}
        assert r.simulator.token_fetches == 2


async def test_a_token_is_renewed_while_the_old_one_serves(rig: Callable[..., Any]) -> None:
    """A token near its end is renewed beside the sends: none of them waits for a slow token endpoint."""
    async with rig({"/token": [Reply(200), Reply(200, delay_ms=500)]}) as r:
        await r.provider.send(dispatch())
        tokens = r.provider._tokens
        tokens._renew_at = 0.0
        assert (await r.provider.send(dispatch())).outcome is Outcome.DELIVERED
        assert tokens._fetching is not None
        old = tokens._token
        await tokens._fetching
        assert tokens._token != old
        assert r.simulator.token_fetches == 2


async def test_a_short_lived_token_is_not_used_to_its_last_moment(rig: Callable[..., Any]) -> None:
    """A token is given up before its end, also when it lives for seconds only."""
    async with rig() as r:
        r.simulator.token_lifetime_s = 4
        began = asyncio.get_running_loop().time()
        await r.provider.send(dispatch())
        tokens = r.provider._tokens
        assert began < tokens._renew_at < tokens._usable_until < began + 4


async def test_a_fresh_token_refused_by_fcm_is_a_fault(rig: Callable[..., Any]) -> None:
    """Where FCM refuses a token just fetched, no storm of fetches follows: all answer FAULT until later."""
    async with rig({TOKEN: [Reply(401, "UNAUTHENTICATED")]}) as r:
        with capture_logs() as logs:
            answers = [await r.provider.send(dispatch()) for _ in range(5)]
        assert {a.outcome for a in answers} == {Outcome.FAULT}
        assert all(a.retry_after_us > 0 for a in answers)
        assert (r.simulator.token_fetches, len(r.log.arrivals)) == (1, 2), "one may be the message's own"
        assert [entry["log_level"] for entry in logs] == ["error"]


@pytest.mark.parametrize("begins", ["good", "bad"])
async def test_a_message_that_fcm_always_answers_401_stops_no_other(rig: Callable[..., Any], begins: str) -> None:
    """Its first refusal may be the token's fault. Where others get through, the next is its own; one fetch does."""
    own, taken = Outcome.FAULT, Outcome.DELIVERED
    told = {"bad": [own, taken, taken] * 3, "good": [taken, taken, Outcome.UNSENT] + [taken, taken, own] * 2}
    async with rig({TOKEN: [Reply(401, "UNAUTHENTICATED")]}) as r:
        for n, outcome in enumerate(told[begins]):
            is_bad = n % 3 == {"bad": 0, "good": 2}[begins]
            assert (await r.provider.send(dispatch(TOKEN if is_bad else f"{TOKEN}{n}"))).outcome is outcome
        assert r.simulator.token_fetches == 1


async def test_a_token_that_is_over_when_it_comes_is_none(rig: Callable[..., Any]) -> None:
    """What takes longer than the token lives is an outage of the token endpoint, and is asked no more for a while."""
    async with rig({"/token": [Reply(200, delay_ms=1100)]}) as r:
        r.simulator.token_lifetime_s = 0
        with capture_logs() as logs:
            answers = [await r.provider.send(dispatch()) for _ in range(2)]
        assert {(a.outcome, a.reason) for a in answers} == {(Outcome.UNSENT, "TokenEndpoint: ExpiredAccessToken")}
        assert all(a.retry_after_us > 0 for a in answers)
        assert [entry["event"] for entry in logs] == ["fcm_token_not_fetched"]


async def test_why_the_token_endpoint_is_not_reached_is_told_in_words(rig: Callable[..., Any]) -> None:
    """As it is of FCM itself, in the log too, and also while the connection may not be tried."""
    async with rig() as r:
        tokens = r.provider._tokens
        tokens._origin = "https://127.0.0.1:1"
        tokens._uri = f"{tokens._origin}/token"
        with capture_logs() as logs:
            answers = [await r.provider.send(dispatch()) for _ in range(2)]
        tokens._backoff = Backoff()  # so that it asks before the connection may be tried again
        answers.append(await r.provider.send(dispatch()))
        words = "connection refused at 127.0.0.1:1"
        assert {(a.outcome, a.seen) for a in answers} == {(Outcome.UNSENT, words)}
        assert answers[-1].reason == "TokenEndpoint: Unreachable"
        assert [entry["reason"] for entry in logs if entry["event"] == "fcm_token_not_fetched"] == [words]


async def test_a_refused_service_account_is_a_fault_logged_once(rig: Callable[..., Any], tmp_path: Path) -> None:
    """A key that Google does not know answers FAULT, is logged once as an error, and is never shown."""
    other = json.loads(make_service_account(tmp_path, "https://127.0.0.1:1/token", PROJECT).read_text())
    async with rig(service_account=other) as r:
        with capture_logs() as logs:
            answers = [await r.provider.send(dispatch()) for _ in range(3)]
        assert {(a.outcome, a.reason) for a in answers} == {(Outcome.FAULT, "TokenEndpoint: invalid_grant")}
        assert (r.simulator.token_fetches, r.log.arrivals) == (1, [])
        assert [entry["log_level"] for entry in logs] == ["error"]
        assert "PRIVATE" not in str(logs)


@pytest.mark.parametrize(
    "reply", [Reply(400, "invalid_grant"), Reply(401, "invalid_client"), Reply(403, "access_denied")]
)
async def test_an_account_that_google_refuses_is_a_fault_until_it_is_put_right(
    rig: Callable[..., Any], reply: Reply
) -> None:
    """A refused account is one fetch and one shout for all who send, and the circuit's first probe asks again."""
    async with rig({"/token": [reply, Reply(200)]}) as r:
        with capture_logs() as logs:
            answers = await asyncio.gather(*(r.provider.send(dispatch(f"{TOKEN}{n}")) for n in range(20)))
        assert {(a.outcome, a.reason) for a in answers} == {(Outcome.FAULT, f"TokenEndpoint: {reply.reason}")}
        first_probe_us = JITTER[0] * PROBE_US["fault"][0]
        assert all(0 < a.retry_after_us <= first_probe_us for a in answers)
        assert (r.simulator.token_fetches, r.log.arrivals) == (1, [])
        assert [entry["log_level"] for entry in logs] == ["error"]
        skip(first_probe_us / SECOND)
        assert (await r.provider.send(dispatch())).outcome is Outcome.DELIVERED


async def test_a_slow_token_endpoint_is_waited_for_no_longer_than_a_timeout(rig: Callable[..., Any]) -> None:
    """Sends that wait for a silent token endpoint are UNSENT within the timeout, after one fetch, and recover."""
    async with rig({"/token": [Reply(200, delay_ms=3000), Reply(200)]}, timeout_us=300_000) as r:
        answers = await asyncio.gather(*(r.provider.send(dispatch(f"{TOKEN}{n}")) for n in range(20)))
        assert {a.outcome for a in answers} == {Outcome.UNSENT}
        assert r.simulator.token_fetches == 1
        skip(max(a.retry_after_us for a in answers) / SECOND)
        assert (await r.provider.send(dispatch())).outcome is Outcome.DELIVERED


async def test_the_old_token_serves_while_the_endpoint_is_down(rig: Callable[..., Any]) -> None:
    """A renewal that fails holds up nobody while the old token lives, and is not tried again at every send."""
    async with rig({"/token": [Reply(200), Reply(503, "backend")]}) as r:
        await r.provider.send(dispatch())
        tokens = r.provider._tokens
        tokens._renew_at = 0.0
        for n in range(10):
            assert (await r.provider.send(dispatch(f"{TOKEN}{n}"))).outcome is Outcome.DELIVERED
            if tokens._fetching is not None:
                await tokens._fetching
        assert r.simulator.token_fetches == 2


@pytest.mark.parametrize(
    "reply",
    [
        Reply(503, "backend"),
        Reply(429, "busy"),
        Reply(400, "temporarily_unavailable"),
        Reply(200, drop=True),
        Reply(502, "<html>"),
        Reply(200, "<html>Sign in to this network</html>"),
    ],
)
async def test_a_token_endpoint_that_is_down_leaves_sends_unsent(rig: Callable[..., Any], reply: Reply) -> None:
    """Without an access token sends answer UNSENT with a backoff, at once within it, and recover."""
    async with rig({"/token": [reply, Reply(200)]}) as r:
        first = await r.provider.send(dispatch())
        skip(0.01)
        second = await r.provider.send(dispatch())
        assert first.outcome is second.outcome is Outcome.UNSENT
        assert 0 < second.retry_after_us < first.retry_after_us <= 200_000
        assert r.simulator.token_fetches == 1
        skip(first.retry_after_us / SECOND)
        assert (await r.provider.send(dispatch())).outcome is Outcome.DELIVERED
        assert len(r.log.arrivals) == 1


async def test_a_server_that_is_gone_leaves_sends_unsent_until_it_is_back(rig: Callable[..., Any]) -> None:
    """A refused connection is UNSENT with a growing backoff; the same client recovers with the server."""
    async with rig() as r:
        await r.provider.send(dispatch())
        await r.simulator.close()
        gone = await asyncio.gather(*(r.provider.send(dispatch()) for _ in range(20)))
        assert {a.outcome for a in gone} == {Outcome.UNSENT}
        waits = [max(a.retry_after_us for a in gone)]
        for _ in range(3):
            skip(waits[-1] / SECOND)
            answer = await r.provider.send(dispatch())
            assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "ClientConnectorError")
            waits.append(answer.retry_after_us)
        skip(0.1)
        held = await r.provider.send(dispatch())
        assert (held.outcome, held.reason) == (Outcome.UNSENT, "Unreachable")
        assert 0 < held.retry_after_us < waits[-1]
        assert waits[0] <= 200_000  # however many failed together, it was one failure
        assert waits[-1] >= 799_999  # between a half and the whole of 1.6 s
        await r.simulator.start()
        skip(waits[-1] / SECOND)
        assert (await r.provider.send(dispatch())).outcome is Outcome.DELIVERED
        assert len(r.log.arrivals) == 2


async def test_an_unknown_authority_is_never_sent_to(rig: Callable[..., Any], tmp_path: Path) -> None:
    """A server whose certificate the CA file does not vouch for gets neither an assertion nor a message."""
    stranger = make_certificates(tmp_path).ca_file
    async with rig(ca_file=stranger) as r:
        assert (await r.provider.send(dispatch())).outcome is Outcome.UNSENT
        r.provider._tokens._token, r.provider._tokens._usable_until = "token", float("inf")
        r.provider._pool._backoffs.clear()  # the token endpoint is at the same address
        answer = await r.provider.send(dispatch())
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "ClientConnectorCertificateError")
        assert (r.simulator.token_fetches, r.log.arrivals) == (0, [])


async def test_past_its_moment_nothing_is_started(rig: Callable[..., Any]) -> None:
    """After `send_by` no request begins, whether the token, a connection or the caller took too long."""
    slow = {"/token": [Reply(200, delay_ms=200)], TOKEN: [Reply(200, delay_ms=300)]}
    async with rig(slow, max_connections=1) as r:
        late = await r.provider.send(dispatch(within_s=-0.1))
        no_token = await r.provider.send(dispatch(within_s=0.1))
        assert (late.outcome, no_token.outcome) == (Outcome.UNSENT, Outcome.UNSENT)
        assert r.log.arrivals == []
        await r.provider._tokens._fetching
        first = asyncio.create_task(r.provider.send(dispatch()))
        await r.log.reach(1)
        no_connection = await r.provider.send(dispatch(within_s=0.1))
        assert (no_connection.outcome, no_connection.reason) == (Outcome.UNSENT, "TooLate")
        assert r.provider._pool.unsent(r.provider._origin, math.inf) is None, "the server is not to blame for that"
        assert not first.done(), "it did not wait for the one before it"
        assert (await first).outcome is Outcome.DELIVERED
        assert len(r.log.arrivals) == 1


async def test_closing_answers_every_send(rig: Callable[..., Any]) -> None:
    """At `close` a send under way answers UNKNOWN, a waiting or later one UNSENT, and none raises."""
    async with rig({TOKEN: [Reply(200, delay_ms=5000)]}, max_connections=1) as r:
        under_way = asyncio.create_task(r.provider.send(dispatch()))
        await r.log.reach(1)
        waiting = asyncio.create_task(r.provider.send(dispatch()))
        await asyncio.sleep(0)
        await r.provider.close()
        assert (await under_way).outcome is Outcome.UNKNOWN
        assert (await waiting).outcome is Outcome.UNSENT
        assert (await r.provider.send(dispatch())).outcome is Outcome.UNSENT
        assert len(r.log.arrivals) == 1


@pytest.mark.parametrize(
    ("ttl_us", "ttl"),
    [
        (None, None),
        (-1, "0s"),
        (0, "0s"),
        (999_999, "0s"),
        (90 * SECOND + 1, "90s"),
        (90 * 86_400 * SECOND, f"{MAX_TTL_S}s"),
    ],
)
async def test_ttl_is_whole_seconds_rounded_down(rig: Callable[..., Any], ttl_us: int | None, ttl: str | None) -> None:
    """What is left of a notification's life is FCM's ttl, never longer, and FCM takes it."""
    async with rig() as r:
        asked = dispatch(ttl_us=ttl_us)
        assert message_of(r.provider, asked)["android"].get("ttl") == ttl
        assert (await r.provider.send(asked)).outcome is Outcome.DELIVERED


@pytest.mark.parametrize(
    ("ttl_us", "ttl_s"), [(-1, 0), (0, 0), (999_999, 0), (90 * SECOND + 1, 90), (90 * 86_400 * SECOND, MAX_TTL_S)]
)
async def test_nothing_outlives_its_expiry_on_any_device(rig: Callable[..., Any], ttl_us: int, ttl_s: int) -> None:
    """FCM's device may be Apple's or a browser: each is told the time left, in whole seconds; 0 is now or never."""
    async with rig() as r:
        asked, before_s = dispatch(ttl_us=ttl_us), int(time.time())
        message = message_of(r.provider, asked)
        after_s = time.time()
        assert (message["android"]["ttl"], message["webpush"]["headers"]) == (f"{ttl_s}s", {"TTL": str(ttl_s)})
        until_s = int(message["apns"]["headers"]["apns-expiration"])
        assert until_s == 0 if not ttl_s else before_s + ttl_s <= until_s <= after_s + ttl_s + 2
        assert (await r.provider.send(asked)).outcome is Outcome.DELIVERED


async def test_a_dry_run_reaches_no_phone(rig: Callable[..., Any]) -> None:
    """With dry_run FCM is asked to validate only: its answer is the real one, and no message comes to a device."""
    async with rig({TOKEN: [Reply(200), Reply(404, "UNREGISTERED")]}, dry_run=True) as r:
        answers = [await r.provider.send(dispatch()) for _ in range(2)]
        assert [a.outcome for a in answers] == [Outcome.DELIVERED, Outcome.DEAD_TOKEN]
        assert r.log.arrivals == []
        assert [a.status for a in r.log.dry_runs] == [200, 404]


async def test_the_whole_notification_arrives(rig: Callable[..., Any]) -> None:
    """Every field of a notification reaches FCM in FCM's form; data that is not text travels as its JSON."""
    fields: dict[str, Any] = {"collapse_id": "score", "sound": "ping", "badge": 3}
    fields["data"] = {"a": "text", "n": 3, "yes": True, "none": None, "list": [1, {"ü": 2.5}]}
    data = {"a": "text", "n": "3", "yes": "true", "none": "null", "list": '[1,{"ü":2.5}]'}
    async with rig() as r:
        asked = dispatch(**fields)
        assert (await r.provider.send(asked)).outcome is Outcome.DELIVERED
        assert message_of(r.provider, asked) == {
            "token": TOKEN,
            "notification": {"title": "Hello", "body": "World"},
            "data": data,
            "android": {
                "priority": "HIGH",
                "collapse_key": "score",
                "notification": {"sound": "ping", "notification_count": 3, "tag": "score"},
            },
            "apns": {
                "headers": {"apns-collapse-id": "score"},
                "payload": {"aps": {"sound": "ping", "badge": 3}},
            },
            "webpush": {"headers": {"Topic": "score"}},
        }
        (arrival,) = r.log.arrivals
        assert (arrival.title, arrival.collapse_id, arrival.data) == ("Hello", "score", data)
        assert (arrival.platform, arrival.token, arrival.status) == ("fcm", TOKEN, 200)
        assert arrival.message_id.startswith(f"projects/{PROJECT}/messages/")


@pytest.mark.parametrize(("priority", "expected"), [("normal", "NORMAL"), ("high", "HIGH")])
async def test_data_alone_stays_a_data_message(rig: Callable[..., Any], priority: str, expected: str) -> None:
    """Without title and body nothing is shown on the device, and the priority is the notification's own."""
    async with rig() as r:
        asked = dispatch(title=None, body=None, data={"sync": 1}, sound="ping", priority=priority)
        message = message_of(r.provider, asked)
        assert message.keys() == {"token", "data", "android"}
        assert message["android"] == {"priority": expected}
        assert (await r.provider.send(asked)).outcome is Outcome.DELIVERED


TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    title=TEXT,
    body=TEXT,
    sound=TEXT,
    badge=st.none() | st.integers(0, 9),
    collapse_id=st.none() | st.just("score"),
    data=st.dictionaries(st.sampled_from(["a", "ö", '"']), TEXT | st.integers() | st.lists(st.booleans())),
)
def test_the_size_counted_at_enqueue_is_the_size_on_the_wire(offline: FcmProvider, **fields: Any) -> None:
    """`payload_size`, which knows no driver, counts what FCM will count in what pyfcm writes."""
    assume(fields["title"] or fields["body"] or fields["data"])
    device = Device("fcm", TOKEN)
    notification = Notification(user="7", devices=[device], **fields)
    written = offline._messages.build(Dispatch("j", device, notification, 5 * SECOND, 0.0))
    message = json.loads(written)["message"]
    assert payload_size(notification) == counted_bytes(message)
    for part in ("data", "notification"):
        assert part not in message or offline._messages.json_dumps(message[part]) in written


async def test_the_limit_is_the_same_here_and_there(rig: Callable[..., Any]) -> None:
    """4,096 bytes are sent and taken; one more is refused before it is sent, and FCM would refuse it too."""
    async with rig() as r:
        spare = PAYLOAD_BYTES - payload_size(dispatch(body="ü").notification) + 2
        full, over = dispatch(body="ü" + "x" * (spare - 2)), dispatch(body="ü" + "x" * (spare - 1))
        assert payload_size(full.notification) == PAYLOAD_BYTES
        assert (await r.provider.send(full)).outcome is Outcome.DELIVERED
        answer = await r.provider.send(over)
        assert (answer.outcome, len(r.log.arrivals)) == (Outcome.REJECTED, 1)
        assert "4097 bytes" in answer.reason
        message = message_of(r.provider, full)
        assert is_valid(message)
        message["notification"]["body"] += "x"
        assert not is_valid(message)


@pytest.mark.parametrize("key", ["from", "message_type", "gcm", "google.x", "gcm.notification.title"])
async def test_keys_that_fcm_reserves_are_refused_by_name(rig: Callable[..., Any], key: str) -> None:
    """A data key that FCM keeps for itself is refused at the payload check and, later, before the wire."""
    async with rig() as r:
        asked = dispatch(data={key: "1"})
        with pytest.raises(InvalidNotificationError) as caught:
            payload_size(asked.notification)
        assert caught.value.field == f"data.{key}"
        answer = await r.provider.send(asked)
        assert (answer.outcome, r.log.arrivals) == (Outcome.REJECTED, [])


@pytest.mark.parametrize(
    "change",
    [
        {"private_key": "-----BEGIN PRIVATE KEY-----\nsecret"},
        {"client_email": ""},
        {"token_uri": None},
        {"project_id": 7},
    ],
)
def test_an_unusable_service_account_is_told_without_its_key(account: dict[str, str], change: dict[str, Any]) -> None:
    """A service account that cannot work is a SettingsError that names the field and never shows the key."""
    (field,) = change
    with pytest.raises(SettingsError, match=field) as caught:
        Fcm().provider(FcmSettings(), None, Build({"NOTIFIER_FCM_SERVICE_ACCOUNT": json.dumps(account | change)}))
    assert "secret" not in str(caught.value)
    assert account["private_key"][40:80] not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("url", ["fcm.googleapis.com", "http://127.0.0.1:1", "https://", "https://[", ""])
def test_only_https_is_spoken(account: dict[str, str], url: str) -> None:
    """An endpoint or token endpoint without TLS is a SettingsError: an access token is never sent openly."""
    with pytest.raises(SettingsError, match="https://host"):
        section("fcm", endpoint=url)
    with pytest.raises(SettingsError, match="token_uri"):
        FcmProvider(FcmSettings(), account | {"token_uri": url})


def test_an_unusable_ca_file_is_told(account: dict[str, str], tmp_path: Path) -> None:
    """A CA file that is missing or holds no certificate is a SettingsError at construction."""
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(SettingsError, match=name):
            FcmProvider(section("fcm", ca_file=tmp_path / name), account)


GOOD: dict[str, Any] = {"token": TOKEN, "notification": {"title": "a"}, "android": {"ttl": "3.5s"}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": "short"},
        {"token": 7},
        {"topic": "news"},
        {"notification": {"titel": "a"}},
        {"notification": {"title": 1}},
        {"notification": "a"},
        {"data": {"n": 1}},
        {"data": {"from": "me"}},
        {"android": {"ttl": "3"}},
        {"android": {"ttl": "-3s"}},
        {"android": {"ttl": f"{MAX_TTL_S + 1}s"}},
        {"android": {"priority": "URGENT"}},
        {"android": {"notification": {"sound": None}}},
        {"android": {"notification": {"color": "red"}}},
        {"android": {"notification": {"visibility": "public"}}},
        {"android": {"notification": {"vibrate_timings": ["1"]}}},
        {"android": {"notification": {"event_time": "yesterday"}}},
        {"android": {"notification": {"sticky": 1}}},
        {"android": {"direct_boot_ok": "true"}},
        {"android": {"data": {"gcm.x": "1"}}},
        {"android": {"data": {"x": "y" * 4096}}},
        {"apns": {"headers": {"apns-priority": 5}}},
        {"apns": {"payload": "x"}},
        {"apns": {"payload": {"aps": {"alert": "x" * 4096}}}},
        {"webpush": {"fcm_options": {"link": "http://x.example"}}},
        {"webpush": {"data": {"n": 1}}},
        {"fcm_options": {"analytics_label": "two words"}},
        {"fcm_options": {"analytics_label": "x" * 51}},
    ],
)
def test_the_simulator_refuses_what_fcm_refuses(wrong: dict[str, Any]) -> None:
    """The simulator is strict: an unknown field, a wrong type, a reserved key or a bad ttl is not taken."""
    assert is_valid(GOOD)
    assert not is_valid(GOOD | wrong)


@pytest.mark.parametrize("priority", ["HIGH", "high", "NORMAL", "normal"])
def test_the_simulator_takes_a_priority_as_google_does(priority: str) -> None:
    """In capitals, as the reference has it, and in lower case, as firebase-admin sends it."""
    assert is_valid(GOOD | {"android": {"priority": priority}})


async def test_the_simulator_checks_the_request(rig: Callable[..., Any]) -> None:
    """Without a live access token, the right project, content type and form a message is refused."""
    async with rig() as r, aiohttp.ClientSession() as session:
        await r.provider.send(dispatch())
        bearer = {"Authorization": f"Bearer {r.provider._tokens._token}"}
        good = {
            "url": r.provider._url,
            "headers": bearer,
            "json": {"message": GOOD},
            "ssl": r.provider._pool.tls,
        }
        elsewhere = r.provider._url.replace(PROJECT, "other")
        cases = [
            ({}, 200, None),
            ({"headers": {"Authorization": "Bearer ya29.other"}}, 401, "UNAUTHENTICATED"),
            ({"headers": {}}, 401, "UNAUTHENTICATED"),
            ({"url": elsewhere}, 404, "NOT_FOUND"),
            ({"json": None, "data": b"{}"}, 400, "INVALID_ARGUMENT"),
            ({"json": {"message": GOOD, "extra": 1}}, 400, "INVALID_ARGUMENT"),
            ({"json": {"message": GOOD, "validate_only": "yes"}}, 400, "INVALID_ARGUMENT"),
            ({"json": {"message": GOOD, "validate_only": True}}, 200, None),
            ({"json": ["message"]}, 400, "INVALID_ARGUMENT"),
            ({"json": {"message": {"token": TOKEN, "topic": "x"}}}, 400, "INVALID_ARGUMENT"),
        ]
        for change, status, word in cases:
            async with session.post(**good | change) as response:
                answer = await response.json()
                assert (response.status, answer.get("error", {}).get("status")) == (status, word)
        (validated,) = r.log.dry_runs
        assert (validated.message_id, validated.dry_run) == (f"projects/{PROJECT}/messages/fake_message_id", True)
        assert not any(arrival.dry_run for arrival in r.log.arrivals)
        token_url = r.simulator.url + "/token"
        async with session.post(token_url, data={"grant_type": "x"}, ssl=r.provider._pool.tls) as response:
            assert await response.json() == {"error": "unsupported_grant_type"}


def test_dry_runs_are_logged_apart(tmp_path: Path) -> None:
    """What was only validated stands in the wire log's file, but is not among what came to a device."""
    path = tmp_path / "wire.jsonl"
    log = WireLog(path)
    real = Arrival(at_us=1, platform="fcm", token=TOKEN, status=200, reason="", message_id="m")
    for arrival in (real, replace(real, dry_run=True)):
        log.record(arrival)
    log.close()
    assert WireLog.read(path) == [real]
    assert WireLog.read(path, dry_runs=True) == [replace(real, dry_run=True)]
