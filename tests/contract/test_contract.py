"""What every provider promises: one suite over all of them, each against a real server on real sockets."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import logging
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from rigs import NETWORKED, RIGS, Rig, Simulators, Stage
from structlog.testing import capture_logs

from notifier.log import QUIET
from notifier.providers.contract import Answer, Outcome
from notifier.simulators.wire import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Law = Callable[[Stage], Coroutine[object, object, None]]

SECOND_US = 1_000_000
SILENT = Reply(200, delay_ms=60_000)
PAGE = Reply(502, "<html><body>Bad Gateway</body></html>")
WAITING = {Outcome.BUSY, Outcome.UNSENT, Outcome.FAULT}

every = pytest.mark.parametrize("rig", RIGS, ids=lambda rig: rig.name)
# A provider without a server cannot show how it bears what a network and a server do.
networked = pytest.mark.parametrize("rig", NETWORKED, ids=lambda rig: rig.name)


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    with Simulators(tmp_path_factory.mktemp("simulators")) as running:
        yield running


async def answer_to(stage: Stage, reply: Reply) -> Answer:
    """The answer to a send that the server answers so; the next one is delivered."""
    answer = await stage.send(await stage.device(reply))
    assert (await stage.send()).outcome is Outcome.DELIVERED
    return answer


# What arrives.


@every
def test_delivered_once_and_whole(rig: Rig, simulators: Simulators) -> None:
    """What was sent arrives once, with its content, and is answered DELIVERED without a wait."""

    async def law(s: Stage) -> None:
        device = await s.device()
        answer = await s.send(device, title="Grüße", body="…", data={"id": "7"}, badge=0, sound="p", collapse_id="c")
        assert (answer.outcome, answer.reason, answer.retry_after_us) == (Outcome.DELIVERED, "", None)
        (arrival,) = await s.arrivals()
        assert (arrival.platform, arrival.title, arrival.status) == (rig.platform, "Grüße", 200)
        if rig.networked:
            assert (arrival.token, arrival.data, arrival.collapse_id) == (rig.scripted_as(device), {"id": "7"}, "c")

    rig.play(simulators, law)


@networked
def test_what_is_left_is_on_the_wire(rig: Rig, simulators: Simulators) -> None:
    """The server is told the time that is left, to the second, not the whole life of the notification."""

    async def law(s: Stage) -> None:
        await s.send(ttl_us=90_500_000)
        (arrival,) = await s.arrivals()
        assert abs(arrival.ttl_us - 90_500_000) <= 2 * SECOND_US

    rig.play(simulators, law)


@networked
def test_a_retry_is_the_same_message(rig: Rig, simulators: Simulators) -> None:
    """A retry of one job to one device carries the same ids, another device or job another message id."""

    async def law(s: Stage) -> None:
        device, other = await s.device(), await s.device()
        for job_id, to in (("a", device), ("a", device), ("a", other), ("b", device)):
            await s.send(to, job_id=job_id, collapse_id="score")
        arrivals = await s.arrivals()
        assert [arrival.collapse_id for arrival in arrivals] == ["score"] * 4
        if rig.own_ids:
            first, again, elsewhere, later = (arrival.message_id for arrival in arrivals)
            assert first == again
            assert len({first, elsewhere, later}) == 3

    rig.play(simulators, law)


@every
def test_ten_sends_to_one_device_have_ten_answers(rig: Rig, simulators: Simulators) -> None:
    """Sends to one device at once are as many sends: each is answered, each arrives, in the order of the calls."""

    async def law(s: Stage) -> None:
        device = await s.device()
        answers = await asyncio.gather(*(s.send(device, title=f"n{n}") for n in range(10)))
        assert [answer.outcome for answer in answers] == [Outcome.DELIVERED] * 10
        assert [arrival.title for arrival in await s.arrivals()] == [f"n{n}" for n in range(10)]

    rig.play(simulators, law)


@every
def test_two_hundred_at_once(rig: Rig, simulators: Simulators) -> None:
    """200 sends at once, to as many devices, are all answered and arrive once each."""

    async def law(s: Stage) -> None:
        devices = [await s.device() for _ in range(200)]
        answers = await asyncio.gather(*(s.send(device) for device in devices))
        assert Counter(answer.outcome for answer in answers) == {Outcome.DELIVERED: 200}
        assert len({arrival.token for arrival in await s.arrivals()}) == len(await s.arrivals()) == 200

    rig.play(simulators, law)


@every
def test_past_its_moment_nothing_is_sent(rig: Rig, simulators: Simulators) -> None:
    """After `send_by` a send answers UNSENT, and nothing arrives."""

    async def law(s: Stage) -> None:
        late = await s.send(within_s=-0.001)
        assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
        assert await s.arrivals() == []
        assert (await s.send()).outcome is Outcome.DELIVERED

    rig.play(simulators, law)


# What is answered.


@networked
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("rejected", Outcome.REJECTED),
        ("dead", Outcome.DEAD_TOKEN),
        ("busy", Outcome.BUSY),
        ("fault", Outcome.FAULT),
    ],
)
def test_each_refusal_has_its_meaning(rig: Rig, simulators: Simulators, kind: str, outcome: Outcome) -> None:
    """Final for this message, final for the token, for now, or our own fault: each as the provider says it."""

    async def law(s: Stage) -> None:
        reply: Reply = getattr(rig, kind)
        answer = await answer_to(s, reply)
        assert (answer.outcome, answer.status, answer.reason) == (outcome, reply.status, reply.reason)
        assert bool(answer.retry_after_us) == (outcome in WAITING)

    rig.play(simulators, law)


@networked
def test_what_no_request_can_carry_is_rejected_alone(rig: Rig, simulators: Simulators) -> None:
    """Half of a surrogate pair, a number without end: rejected here, and what is sent beside it arrives."""

    async def law(s: Stage) -> None:
        wrong: list[dict[str, object]] = [{"title": "\ud800"}, {"data": {"a": "\ud800"}}, {"badge": 10**5000}]
        devices = [await s.device() for _ in range(2 * len(wrong))]
        fields = [*wrong, *({} for _ in wrong)]
        answers = await asyncio.gather(*(s.send(device, **each) for device, each in zip(devices, fields, strict=True)))
        assert [(a.outcome, a.status) for a in answers[:3]] == [(Outcome.REJECTED, None)] * 3
        assert {a.outcome for a in answers[3:]} == {Outcome.DELIVERED}
        assert len(await s.arrivals()) == len(wrong)

    rig.play(simulators, law)


@networked
def test_retry_after(rig: Rig, simulators: Simulators) -> None:
    """Retry-After is handed on and never slept: in seconds, and as a date by the server's own clock."""
    now = dt.datetime(2031, 5, 1, 12, 0, tzinfo=dt.UTC)
    then = now + dt.timedelta(seconds=110)
    date, until = (email.utils.format_datetime(at, usegmt=True) for at in (now, then))
    asked = [{"Retry-After": "110"}, {"Retry-After": until, "Date": date}]

    async def law(s: Stage) -> None:
        began = time.monotonic()
        for headers in asked:
            answer = await answer_to(s, Reply(rig.busy.status, rig.busy.reason, headers))
            assert (answer.outcome, answer.retry_after_us) == (Outcome.BUSY, 110 * SECOND_US)
        for nonsense in ("soon", "-5", "9" * 400):
            answer = await answer_to(s, Reply(rig.busy.status, rig.busy.reason, {"Retry-After": nonsense}))
            assert answer.outcome is Outcome.BUSY
            assert 0 < answer.retry_after_us <= 86_400 * SECOND_US
        assert time.monotonic() - began < 110, "it is not slept"

    rig.play(simulators, law)


@networked
@pytest.mark.parametrize("reply", [Reply(500), Reply(503, "NeverHeardOf"), Reply(599), PAGE], ids=lambda r: r.status)
def test_an_error_of_the_server_is_unknown(rig: Rig, simulators: Simulators, reply: Reply) -> None:
    """After a 5xx, even one in a proxy's HTML, nobody knows whether it was delivered; it is told when to try again."""

    async def law(s: Stage) -> None:
        answer = await answer_to(s, reply)
        assert (answer.outcome, answer.status) == (Outcome.UNKNOWN, reply.status)
        assert answer.retry_after_us
        assert "<" not in answer.reason

    rig.play(simulators, law)


@networked
@pytest.mark.parametrize(
    "reply",
    [Reply(400, "NeverHeardOf"), Reply(418), Reply(404, "<html>"), Reply(302, "<html>")],
    ids=lambda r: r.status,
)
def test_what_was_never_heard_of_is_an_answer(rig: Rig, simulators: Simulators, reply: Reply) -> None:
    """A status or reason that stands in no documentation is an answer like any other: refused, nothing delivered."""

    async def law(s: Stage) -> None:
        answer = await answer_to(s, reply)
        refused = {Outcome.DEAD_TOKEN} if reply.status in rig.gone else {Outcome.REJECTED, Outcome.FAULT}
        assert answer.outcome in refused
        assert answer.status == reply.status

    rig.play(simulators, law)


# What breaks.


@networked
def test_a_silent_server_is_unknown_by_the_deadline(rig: Rig, simulators: Simulators) -> None:
    """A request that left and was not answered is UNKNOWN when its time is over; the next one is delivered."""

    async def law(s: Stage) -> None:
        await s.send()
        began = time.monotonic()
        answer = await s.send(await s.device(SILENT))
        assert (answer.outcome, answer.status) == (Outcome.UNKNOWN, None)
        assert time.monotonic() - began > 0.35
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
        assert len(await s.arrivals()) == 3

    rig.play(simulators, law, timeout_us=400_000)


@networked
def test_a_server_that_hangs_up_is_unknown(rig: Rig, simulators: Simulators) -> None:
    """A connection that ends in place of an answer leaves the send UNKNOWN; it was sent once."""

    async def law(s: Stage) -> None:
        device = await s.device(Reply(200, drop=True), Reply(200))
        assert (await s.send(device)).outcome is Outcome.UNKNOWN
        assert len(await s.arrivals()) == 1
        assert (await s.insist(device)).outcome is Outcome.DELIVERED

    rig.play(simulators, law)


@networked
def test_a_cut_in_a_batch(rig: Rig, simulators: Simulators) -> None:
    """Each of those under way when the network breaks is answered, UNSENT only if it never arrived."""

    async def law(s: Stage) -> None:
        await s.send()
        devices = [await s.device(SILENT) for _ in range(45)]  # fewer than any provider has connections
        sends = [asyncio.create_task(s.send(device)) for device in devices]
        await s.reach(20)
        await s.cut()
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*sends)
        assert {answer.outcome for answer in answers} <= {Outcome.UNKNOWN, Outcome.UNSENT}
        assert Outcome.UNKNOWN in {answer.outcome for answer in answers}
        arrived = {arrival.token for arrival in await s.arrivals()}
        for device, answer in zip(devices, answers, strict=True):
            if answer.outcome is Outcome.UNSENT:
                assert rig.scripted_as(device) not in arrived
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    rig.play(simulators, law)


@networked
def test_an_idle_close_does_not_lose_the_next(rig: Rig, simulators: Simulators) -> None:
    """A connection that the server closed while it was idle costs the next send nothing but a new connection."""

    async def law(s: Stage) -> None:
        for _ in range(3):
            device = await s.device()
            assert (await s.insist(device)).outcome is Outcome.DELIVERED
            await s.cut()
            await s.arrivals()  # by then the end of the connection has been told
            assert len(await s.arrivals(device)) == 1

    rig.play(simulators, law)


@networked
def test_a_server_that_is_away(rig: Rig, simulators: Simulators) -> None:
    """While the server is away sends are UNSENT with a wait, at once; the same client recovers when it is back."""

    async def law(s: Stage) -> None:
        await s.send()
        await s.stop()
        try:
            answers = await asyncio.gather(*(s.send(device) for device in [await s.device() for _ in range(20)]))
            answers.append(await s.send())
        finally:
            await s.start()
        # What was sent before the end of the connection was seen may have reached it.
        assert {answer.outcome for answer in answers} <= {Outcome.UNSENT, Outcome.UNKNOWN}
        assert answers[-1].outcome is Outcome.UNSENT
        assert 0 < answers[-1].retry_after_us <= 30 * SECOND_US
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
        assert len(await s.arrivals()) == 2

    rig.play(simulators, law)


@networked
def test_no_storm_of_connections(rig: Rig, simulators: Simulators) -> None:
    """Where a connection ends as soon as it is made, sends wait as they are told to, and none tries in between."""
    accepted = 0

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        endpoint = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with rig.stage(simulators, endpoint=endpoint) as s:
            assert (await s.send()).outcome is Outcome.UNSENT
            answers = await asyncio.gather(*(s.send() for _ in range(50)))
            assert {answer.outcome for answer in answers} == {Outcome.UNSENT}
            assert all(0 < answer.retry_after_us <= 30 * SECOND_US for answer in answers)
            assert accepted == 1
        server.close()
        await server.wait_closed()

    asyncio.run(run())


@networked
def test_every_call_has_one_true_answer(rig: Rig, simulators: Simulators) -> None:
    """Whatever servers and networks do: no call raises, DELIVERED arrived, UNSENT did not, and none arrived twice."""
    troubles = [
        rig.rejected, rig.dead, rig.busy, rig.fault, PAGE, SILENT, Reply(500), Reply(400, "NeverHeardOf"),
        Reply(200, delay_ms=100), Reply(200, delay_ms=700), Reply(200), Reply(200),
    ]  # fmt: skip
    dice = random.Random(20261121)

    async def law(s: Stage) -> None:
        devices = [await s.device(dice.choice(troubles)) for _ in range(150)]
        sends = []
        for number, device in enumerate(devices):
            sends.append(asyncio.create_task(s.send(device, within_s=dice.choice([-1, 0.01, 5, 5, 5]))))
            if number in {60, 110}:
                await asyncio.sleep(0.05)
                await s.cut()
            elif number % 10 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(15):
            answers = await asyncio.gather(*sends)
        arrived = Counter(arrival.token for arrival in await s.arrivals())
        assert max(arrived.values()) == 1
        for device, answer in zip(devices, answers, strict=True):
            assert isinstance(answer, Answer)
            if answer.outcome is not Outcome.UNKNOWN:
                assert arrived[rig.scripted_as(device)] == (answer.outcome is not Outcome.UNSENT), answer
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    rig.play(simulators, law, timeout_us=500_000)


# The end.


@every
def test_a_closed_provider_sends_nothing(rig: Rig, simulators: Simulators) -> None:
    """After `close`, which may be called twice, a send is UNSENT and nothing arrives."""

    async def law(s: Stage) -> None:
        assert (await s.send()).outcome is Outcome.DELIVERED
        await s.provider.close()
        await s.provider.close()
        answer = await s.send()
        assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Closed")
        assert len(await s.arrivals()) == 1

    rig.play(simulators, law)


@networked
def test_closing_answers_what_is_under_way(rig: Rig, simulators: Simulators) -> None:
    """`close` does not wait for a silent server: what has left is UNKNOWN, what has not is UNSENT."""

    async def law(s: Stage) -> None:
        await s.send()
        devices = [await s.device(SILENT) for _ in range(20)]
        sends = [asyncio.create_task(s.send(device)) for device in devices]
        await s.reach(1 + len(devices))
        last = asyncio.create_task(s.send(await s.device(SILENT)))
        async with asyncio.timeout(3):
            await s.provider.close()
            answers = await asyncio.gather(*sends)
            assert (await last).outcome in {Outcome.UNKNOWN, Outcome.UNSENT}
        assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}

    rig.play(simulators, law)


# What is never shown.


@every
def test_nothing_is_given_away(rig: Rig, simulators: Simulators, caplog: pytest.LogCaptureFixture) -> None:
    """Neither logs at their finest nor reprs show a token in full, a title, a body, data, or a key of ours."""
    caplog.set_level(logging.DEBUG)
    for name in QUIET:  # as `configure_logging` leaves them, whatever the level
        caplog.set_level(logging.WARNING, name)

    async def law(s: Stage) -> None:
        replies = [Reply(200), rig.rejected, rig.dead, rig.busy, rig.fault, PAGE, SILENT] if rig.networked else [None]
        content = {"title": "my-title", "body": "my-body", "data": {"k": "my-data"}}
        seen: list[object] = []
        for reply in replies:
            answer = await s.send(await s.device(*filter(None, [reply])), **content)
            seen += [answer, s.dispatch(s.devices[-1], **content)]
        if rig.networked:
            await s.stop()
            await s.start()
            seen.append(await s.send(**content))
        seen += [s.provider, vars(s.provider), *caplog.messages, *logs, s.printed.getvalue().replace("my-title", "")]
        text = " ".join(map(repr, seen)) + " ".join(map(str, seen))
        words = [
            *(d.token for d in s.devices),
            "my-title",
            "my-body",
            "my-data",
            *rig.secrets(simulators.told[rig.platform]),
        ]
        assert [word[:8] for word in words if word in text] == []

    with capture_logs() as logs:
        rig.play(simulators, law, timeout_us=400_000)
