"""Every fault that the simulators know, met by every provider: what it answers, and that it goes on."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.http2.requests import MAX_UNANSWERED
from notifier.simulators.faults import FAULTS
from notifier.simulators.provider_contract import ProviderContract
from notifier.simulators.provider_contract.stage import ANSWER_US, SECOND_US, Stage
from notifier.testing.ports import free_port
from tests.contract.rigs import APNS, NETWORKED

DELIVERED, REJECTED, DEAD, RETRY = Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN, Outcome.RETRY
BUSY = Outcome.BUSY
UNSENT, UNKNOWN, FAULT = Outcome.UNSENT, Outcome.UNKNOWN, Outcome.FAULT

OUTCOMES = {
    DEAD: "unregistered expired_token",
    REJECTED: "bad_token wrong_app payload_too_large unknown_reason",
    FAULT: "wrong_topic bad_credentials expired_credentials too_many_token_updates forbidden not_found",
    Outcome.REFUSED: "third_party_auth",
    Outcome.FULL: "project_full",
    BUSY: "throttled throttled_seconds throttled_date",
    UNKNOWN: "internal internal_seconds unavailable unavailable_seconds unavailable_date shutdown bad_gateway silent "
    "cut reset_stream",
    DELIVERED: "slow go_away",
    UNSENT: "refused_stream",
}
MEANS = {name: outcome for outcome, names in OUTCOMES.items() for name in names.split()}
BUT = {("apns", "forbidden"): REJECTED}  # Apple: never to be tried again
# What a push service says of the sender may be one subscription's fault: webpush/test_provider.py has those.
OURS = [rig for rig in NETWORKED if rig.platform != "webpush"]
MET = [(rig, name) for rig in OURS for name, fault in FAULTS.items() if rig.platform in fault.replies]


@pytest.mark.parametrize(("rig", "name"), MET, ids=lambda value: getattr(value, "platform", value))
async def test_each_fault_has_its_outcome(rig: ProviderContract, name: str) -> None:
    """A fault is an answer of the right kind, and whoever is next is served, or told the same without a request."""
    async with rig.stage(timeout_us=SECOND_US if name == "silent" else ANSWER_US) as s:
        device = await s.device(FAULTS[name].replies[rig.platform])
        answer = await s.send(device)
        assert answer.outcome is BUT.get((rig.platform, name), MEANS[name]), answer
        following = await s.insist(await s.device())
        assert following.outcome is (FAULT if following.status is None else DELIVERED)
        assert following.status or answer.outcome is FAULT


async def many(s: Stage, count: int, **fields: object) -> list[Answer]:
    return await asyncio.gather(*(s.send(**fields) for _ in range(count)))


async def test_goaway_in_the_middle_of_a_batch() -> None:
    """What the server will not process is unsent and never arrived, the rest is delivered; the next goes elsewhere."""
    async with APNS.stage() as s:
        assert (await s.send()).outcome is DELIVERED
        await s.tell(latency_ms=300)
        try:
            batch = asyncio.gather(*(s.send() for _ in range(10)))
            await s.reach(11)
            await s.tell(go_away={"keep": 0.5})
            answers = await batch
        finally:
            await s.tell(latency_ms=0)
        assert [answer.outcome for answer in answers].count(DELIVERED) == 5
        assert {answer.outcome for answer in answers} <= {DELIVERED, UNSENT, UNKNOWN}
        assert (await s.insist(await s.device())).outcome is DELIVERED


async def test_a_limit_that_shrinks_to_one_stream() -> None:
    """The server may take back streams at any time, down to one: all is delivered, only slower."""
    async with APNS.stage() as s:
        assert (await s.send()).outcome is DELIVERED
        try:
            devices = [await s.device() for _ in range(50)]
            batch = asyncio.gather(*(s.insist(device) for device in devices))
            await s.tell(max_streams=1)
            assert {answer.outcome for answer in await batch} == {DELIVERED}
            assert {answer.outcome for answer in await many(s, 20)} == {DELIVERED}
        finally:
            await s.tell(max_streams=1000)


async def test_a_window_that_never_opens_again() -> None:
    """Where the server takes no more, sends end in time; the connection is left, and a new one delivers."""
    async with APNS.stage(timeout_us=SECOND_US) as s:
        await s.tell(window_updates=False)
        try:
            answers = await many(s, 30, body="x" * 3900)
        finally:
            await s.tell(window_updates=True)
        counted = [answer.outcome for answer in answers]
        assert counted.count(DELIVERED) >= 15
        assert set(counted) <= {DELIVERED, UNSENT, UNKNOWN}
        assert (await s.insist(await s.device())).outcome is DELIVERED


@contextlib.asynccontextmanager
async def instead_of_apple(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None, speaks: str | None = "h2"
) -> AsyncIterator[Stage]:
    """A stage whose provider meets a server of the test's own, if any. speaks: over TLS; None is without TLS."""
    port = free_port()
    async with APNS.stage(timeout_us=SECOND_US, endpoint=f"https://localhost:{port}") as stage:
        if talk is None:
            yield stage
            return
        tls = None
        if speaks is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(APNS.certificates.cert_file, APNS.certificates.key_file)
            tls.set_alpn_protocols([speaks])
        async with await asyncio.start_server(talk, "localhost", port, ssl=tls):
            yield stage


SETTINGS = b"\0\0\0\4\0\0\0\0\0"
STATUS_200 = b"\0\0\1\1\5\0\0\0\1\x88"  # the headers that are all of the first stream's response
OPEN_200 = b"\0\0\1\1\4\0\0\0\1\x88"  # the same, and something is to follow
NO_ERROR = b"\0\0\4\3\0\0\0\0\1\0\0\0\0"  # a reset of the first stream that says so
GO_AWAY = b"\0\0\x08\7\0\0\0\0\0\0\0\0\0\0\0\0\0"  # as if no stream had been processed
PING = b"\0\0\x08\6\0\0\0\0\0anything"


@contextlib.asynccontextmanager
async def apple_that_says(*answers: bytes) -> AsyncIterator[Stage]:
    """In Apple's place a server: each connection says one of these to all that it is sent, later ones the last."""
    turn = itertools.chain(answers, itertools.repeat(answers[-1]))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        answer = next(turn)
        while read := await reader.read(65536):
            if b'"aps"' in read:
                writer.write(answer)
        writer.close()

    async with instead_of_apple(talk) as stage:
        yield stage


async def test_a_server_that_talks_and_never_answers() -> None:
    """After some requests without an answer its connection is left, however much it says; a new one delivers."""
    async with apple_that_says(PING, STATUS_200) as s:
        silent = await many(s, MAX_UNANSWERED)
        assert {(answer.outcome, answer.reason) for answer in silent} == {(UNKNOWN, "Timeout")}
        assert (await s.insist(await s.device())).outcome is DELIVERED


@pytest.mark.parametrize(
    "said",
    [STATUS_200 + NO_ERROR, OPEN_200 + NO_ERROR, OPEN_200, STATUS_200 + GO_AWAY, OPEN_200 + GO_AWAY],
    ids=["ended, reset", "reset", "never ended", "ended, gone", "gone"],
)
async def test_a_status_that_came_is_the_answer(said: bytes) -> None:
    """Whatever becomes of its stream, a message that was accepted is not sent again."""
    async with apple_that_says(said) as s:
        assert (await s.send()).outcome is DELIVERED


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_connection_that_stalled_tells_what_it_has_read(*, goes_on: bool) -> None:
    """What had no answer was read once its own connection answers a PING sent after it; others prove nothing of it.

    Where the connection ends before, it tells nothing.
    """
    stalled = asyncio.Event()
    asked = b"\0\0\x08\6\0\0\0\0\0"

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        ping = (await reader.readuntil(asked), await reader.readexactly(8))[1]
        await stalled.wait()
        if goes_on:
            writer.write(b"\0\0\x08\6\1\0\0\0\0" + ping)
            await reader.read()
        writer.close()

    async with instead_of_apple(stall) as s:
        answer = await s.send()
        assert (answer.outcome, answer.reason) == (UNKNOWN, "Timeout")
        assert answer.passed is not None
        assert not answer.passed.done()
        stalled.set()
        assert await answer.passed is goes_on


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("none", "connection refused at {}"),
        ("silent", "no connection to {} in time"),
        ("http1", "{}: the server does not speak HTTP/2"),
        ("closes", "{}: ended before it answered anything"),
    ],
)
async def test_why_apple_is_not_reached_is_told(server: str, words: str) -> None:
    """Whoever waits is told in the words of a person, with the host: nothing else says what to mend."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server != "closes":
            await reader.read()
        writer.close()

    speaks = {"silent": None, "http1": "http/1.1"}.get(server, "h2")
    async with instead_of_apple(None if server == "none" else meet, speaks) as s:
        place = s.endpoint.removeprefix("https://")
        assert {answer.seen for answer in await many(s, 3)} - {""} == {words.format(place)}
