"""The promises of every provider, as tests: subclass `ProviderContract` in a test file, and pytest runs them.

A platform brings its simulator, a server that answers as its provider's does. Each test has a provider that was built
as a worker builds it, from a section of the YAML, and a simulator on a free port of this machine::

    class TestPigeon(ProviderContract):
        platform = "pigeon"
        rejected, dead = Reply(400, "BadLetter"), Reply(410, "Gone")
        busy, fault = Reply(429, "Tired"), Reply(401, "WrongRing")

        def device(self, number: int, endpoint: str) -> Device: ...
        def simulator(self, certificates: Certificates, log: WireLog) -> Simulator: ...
        def section(self, simulator: Simulator) -> dict[str, Any]: ...

docs/how-to/platforms.md shows a whole one. Needs pytest and the packages of `python -m notifier.simulators`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import io
import itertools
import json
import logging
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import pytest
from structlog.testing import capture_logs

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.log import QUIET
from notifier.notification import Device, Notification
from notifier.notification.job import encode_targets
from notifier.notification.platforms import PROTOCOL, find
from notifier.providers import check_payload
from notifier.providers.build import Build
from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from notifier.settings import parse_settings
from notifier.simulators.certificates import Certificates, make_certificates
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import Arrival, Reply, WireLog

TIMEOUT_S: Final = 60.0  # how long a test waits for what should come within milliseconds
SECOND_US: Final = 1_000_000
ANSWER_US: Final = 8 * SECOND_US  # the timeout of a provider where the test is not about it; a lease outlasts it
SILENT: Final = Reply(200, delay_ms=60_000)
PAGE: Final = Reply(502, "<html><body>Bad Gateway</body></html>")
WAITING: Final = frozenset({Outcome.BUSY, Outcome.FULL, Outcome.UNSENT, Outcome.FAULT})
TARGET: Final = re.compile(r"- \w+:[ncb](@\S+)?\|\S+")
_numbers: Final = itertools.count(1)


class Line:
    """A test's own connection to the simulators' control. arrivals: since it was made, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrivals: list[Arrival] = []
        self._writer = writer
        self._done: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._listening = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            said = json.loads(line)
            if "arrival" not in said:
                self._done.put_nowait(said)
                continue
            self.arrivals.append(Arrival(**said["arrival"]))
            async with self._changed:
                self._changed.notify_all()

    async def ask(self, whom: str, what: object) -> None:
        """Tell the simulators something, see their control; all that arrived before is in `arrivals` then."""
        self._writer.write(json.dumps({whom: what}).encode() + b"\n")
        async with asyncio.timeout(TIMEOUT_S):
            assert await self._done.get() == {"done": [whom]}

    async def reach(self, enough: Callable[[list[Arrival]], bool]) -> None:
        """Wait until what has arrived is enough."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: enough(self.arrivals))

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._listening


class Subject(Protocol):
    """The provider and its server, by name."""

    @property
    def platform(self) -> str:
        """The platform's name."""
        ...

    def device(self, number: int, endpoint: str) -> Device:
        """Another device for each number."""
        ...

    def scripted_as(self, device: Device) -> str:
        """The name by which the server knows a device."""
        ...

    def read_printed(self, text: str) -> list[Arrival]:
        """The arrivals where there is no server."""
        ...


@dataclass
class Stage:
    """The stage of a test: a provider, its server, and devices of this test alone."""

    of: Subject
    provider: Provider
    endpoint: str
    server: Line | None
    printed: io.StringIO = field(default_factory=io.StringIO)
    devices: list[Device] = field(default_factory=list)
    needs: Mapping[str, Any] = field(default_factory=dict)

    async def device(self, *replies: Reply) -> Device:
        """A new device, whose messages are answered so; the last reply repeats, without any they are accepted."""
        device = self.of.device(next(_numbers), self.endpoint)
        self.devices.append(device)
        if replies:
            await self._ask("scripts", {self.of.scripted_as(device): [asdict(reply) for reply in replies]})
        return device

    async def send(self, device: Device | None = None, *, within_s: float = TIMEOUT_S, **options: Any) -> Answer:
        """Send to a device, a new one if none is given."""
        return await self.provider.send(self.dispatch(device or await self.device(), within_s=within_s, **options))

    def dispatch(
        self,
        device: Device,
        *,
        job_id: str = "",
        ttl_us: int | None = None,
        within_s: float = TIMEOUT_S,
        **fields: Any,
    ) -> Dispatch:
        """A dispatch of a job of its own, unless its id is given."""
        notification = Notification(user="u", devices=[device], **({"title": "Hello", **self.needs} | fields))
        send_by = asyncio.get_running_loop().time() + within_s
        return Dispatch(job_id or f"job-{next(_numbers)}", device, notification, ttl_us, send_by)

    async def insist(self, device: Device, **options: Any) -> Answer:
        """Send as a worker does: what was not sent, again once the wait that was asked for is over."""
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await self.send(device, **options)).outcome is Outcome.UNSENT:  # noqa: ASYNC110 - it is a time
                await asyncio.sleep((answer.retry_after_us or 0) / 1_000_000)
        return answer

    async def arrivals(self, device: Device | None = None) -> list[Arrival]:
        """Return what has arrived so far at this test's devices, or at one, in order."""
        if self.server is None:
            return self.of.read_printed(self.printed.getvalue())
        await self._ask("scripts", {})
        wanted = {self.of.scripted_as(d) for d in ([device] if device else self.devices)}
        return [arrival for arrival in self.server.arrivals if arrival.token in wanted]

    async def reach(self, count: int) -> None:
        """Wait until so many messages have arrived at this test's devices."""
        assert self.server is not None

        def enough(arrived: list[Arrival]) -> bool:
            wanted = {self.of.scripted_as(device) for device in self.devices}
            return sum(arrival.token in wanted for arrival in arrived) >= count

        await self.server.reach(enough)

    async def tell(self, **what: Any) -> None:
        """Tell the server what notifier/simulators/control.py takes; settings stay until told otherwise."""
        await self._ask(self.of.platform, what)

    async def cut(self) -> None:
        """Cut every connection to the server, as a broken network does."""
        await self.tell(cut=True)

    async def stop(self) -> None:
        """Have the server gone."""
        await self.tell(listening=False)

    async def start(self) -> None:
        """Have it back, at the same address."""
        await self.tell(listening=True)

    async def _ask(self, whom: str, what: object) -> None:
        assert self.server is not None, f"{self.of.platform} has no server to be told {what}"
        await self.server.ask(whom, what)


Law: TypeAlias = Callable[[Stage], Coroutine[object, object, None]]


async def answer_to(stage: Stage, reply: Reply) -> Answer:
    """The answer to a send that the server answers so; the next one is delivered."""
    answer = await stage.send(await stage.device(reply))
    assert (await stage.send()).outcome is Outcome.DELIVERED
    return answer


class SendingContract:
    """The promises of a provider whatever it sends over, be it a network or a terminal.

    platform: its name, as in `Device.platform`. needs: what a message must have beside a title. networked: there is a
    server behind it. collapses, expires: the collapse id, and the time that is left, reach the server.
    """

    platform: ClassVar[str]
    needs: ClassVar[Mapping[str, Any]] = {}
    networked: ClassVar[bool] = True
    collapses: ClassVar[bool] = True
    expires: ClassVar[bool] = True

    def device(self, number: int, endpoint: str) -> Device:
        """Another device for each number. endpoint: of the simulator."""
        raise NotImplementedError

    def scripted_as(self, device: Device) -> str:
        """The name by which the server knows a device."""
        return device.token

    def read_printed(self, text: str) -> list[Arrival]:
        """The arrivals where there is no server."""
        raise NotImplementedError

    def every_reply(self) -> Sequence[Sequence[Reply]]:
        """Return the answers of a server to one message each, as scripts; an empty one if there is no server."""
        return [()]

    def secrets(self) -> Sequence[str]:
        """Return the parts of the provider's configuration that must never be seen, in a log for example."""
        return ()

    def stage(self, *, timeout_us: int = ANSWER_US, endpoint: str | None = None) -> Any:
        """An asynchronous context with a `Stage`. endpoint: in place of the simulator's."""
        raise NotImplementedError

    def play(self, law: Law, **options: Any) -> None:
        """Run a law on a stage of its own."""

        async def run() -> None:
            async with self.stage(**options) as stage:
                await law(stage)

        asyncio.run(run())

    def test_delivered_once_and_whole(self) -> None:
        """A message arrives once, with its content, and is answered DELIVERED without a wait."""

        async def law(s: Stage) -> None:
            device = await s.device()
            answer = await s.send(
                device, title="Grüße", body="…", data={"id": "7"}, badge=0, sound="p", collapse_id="c"
            )
            assert (answer.outcome, answer.reason, answer.retry_after_us) == (Outcome.DELIVERED, "", None)
            (arrival,) = await s.arrivals()
            assert (arrival.platform, arrival.title, arrival.status) == (self.platform, "Grüße", 200)
            if self.networked:
                assert (arrival.token, arrival.data) == (self.scripted_as(device), {"id": "7"})
                assert arrival.collapse_id == ("c" if self.collapses else None)

        self.play(law)

    def test_ten_sends_to_one_device_have_ten_answers(self) -> None:
        """Sends to one device at once are as many sends: each is answered, each arrives, in the order of the calls."""

        async def law(s: Stage) -> None:
            device = await s.device()
            answers = await asyncio.gather(*(s.send(device, title=f"n{n}") for n in range(10)))
            assert [answer.outcome for answer in answers] == [Outcome.DELIVERED] * 10
            assert [arrival.title for arrival in await s.arrivals()] == [f"n{n}" for n in range(10)]

        self.play(law)

    def test_two_hundred_at_once(self) -> None:
        """200 sends at once, to as many devices, are all answered and arrive once each."""

        async def law(s: Stage) -> None:
            devices = [await s.device() for _ in range(200)]
            answers = await asyncio.gather(*(s.send(device) for device in devices))
            assert Counter(answer.outcome for answer in answers) == {Outcome.DELIVERED: 200}
            assert len({arrival.token for arrival in await s.arrivals()}) == len(await s.arrivals()) == 200

        self.play(law)

    def test_past_its_moment_nothing_is_sent(self) -> None:
        """After `send_by` a send answers UNSENT, and nothing arrives."""

        async def law(s: Stage) -> None:
            late = await s.send(within_s=-0.001)
            assert (late.outcome, late.reason) == (Outcome.UNSENT, "TooLate")
            assert await s.arrivals() == []
            assert (await s.send()).outcome is Outcome.DELIVERED

        self.play(law)

    def test_a_closed_provider_sends_nothing(self) -> None:
        """After `close`, which may be called twice, a send is UNSENT and nothing arrives."""

        async def law(s: Stage) -> None:
            assert (await s.send()).outcome is Outcome.DELIVERED
            await s.provider.close()
            await s.provider.close()
            answer = await s.send()
            assert (answer.outcome, answer.reason) == (Outcome.UNSENT, "Closed")
            assert len(await s.arrivals()) == 1

        self.play(law)

    def test_nothing_is_given_away(self, caplog: pytest.LogCaptureFixture) -> None:
        """Neither logs at their finest nor reprs show a token in full, a title, a body, data, or a key of ours."""
        caplog.set_level(logging.DEBUG)
        for name in QUIET:  # as `configure_logging` leaves them, whatever the level
            caplog.set_level(logging.WARNING, name)

        async def law(s: Stage) -> None:
            content: dict[str, Any] = {"title": "my-title", "body": "my-body", "data": {"k": "my-data"}}
            seen: list[object] = []
            for replies in self.every_reply():
                answer = await s.send(await s.device(*replies), **content)
                seen += [answer, s.dispatch(s.devices[-1], **content)]
            if self.networked:
                await s.stop()
                await s.start()
                seen.append(await s.send(**content))
            seen += [
                s.provider,
                vars(s.provider),
                *caplog.messages,
                *logs,
                s.printed.getvalue().replace("my-title", ""),
            ]
            text = " ".join(map(repr, seen)) + " ".join(map(str, seen))
            words = [
                *(d.token for d in s.devices),
                "my-title",
                "my-body",
                "my-data",
                *self.secrets(),
            ]
            assert [word[:8] for word in words if word in text] == []

        with capture_logs() as logs:
            self.play(law, timeout_us=SECOND_US)


class NetworkContract(SendingContract):
    """The promises of a provider that sends to a server.

    rejected, dead, busy, fault: a reply of the server that refuses this message for good, that says the token is gone,
    that takes no more for now and may carry Retry-After, that refuses our credentials for every message. busy_means:
    BUSY where that is of one device, FULL where it is of all. fault_means: REJECTED where a server that has taken a
    message says it of one device. gone: the statuses that say by themselves, whatever the reason, that the token is
    dead. own_ids: the message's id is ours, so that it is the same at a retry.
    """

    rejected: ClassVar[Reply]
    dead: ClassVar[Reply]
    busy: ClassVar[Reply]
    fault: ClassVar[Reply]
    busy_means: ClassVar[Outcome] = Outcome.BUSY
    fault_means: ClassVar[Outcome] = Outcome.FAULT
    gone: ClassVar[frozenset[int]] = frozenset()
    own_ids: ClassVar[bool] = False

    def status_of(self, reply: Reply) -> int:
        """The HTTP status with which the server gives this reply."""
        return reply.status

    def every_reply(self) -> Sequence[Sequence[Reply]]:
        """See `SendingContract`."""
        return [[r] for r in (Reply(200), self.rejected, self.dead, self.busy, self.fault, PAGE, SILENT)]

    def test_what_is_left_is_on_the_wire(self) -> None:
        """The server is told the time that is left, to the second, not the whole life of the notification."""

        async def law(s: Stage) -> None:
            await s.send(ttl_us=90_500_000)
            (arrival,) = await s.arrivals()
            if not self.expires:
                return
            assert arrival.ttl_us is not None
            assert abs(arrival.ttl_us - 90_500_000) <= 2 * SECOND_US

        self.play(law)

    def test_a_retry_is_the_same_message(self) -> None:
        """A retry of one job to one device carries the same ids, another device or job another message id."""

        async def law(s: Stage) -> None:
            device, other = await s.device(), await s.device()
            for job_id, to in (("a", device), ("a", device), ("a", other), ("b", device)):
                await s.send(to, job_id=job_id, collapse_id="score")
            arrivals = await s.arrivals()
            assert [arrival.collapse_id for arrival in arrivals] == ["score" if self.collapses else None] * 4
            if self.own_ids:
                first, again, elsewhere, later = (arrival.message_id for arrival in arrivals)
                assert first == again
                assert len({first, elsewhere, later}) == 3

        self.play(law)

    @pytest.mark.parametrize(
        ("kind", "outcome"),
        [
            ("rejected", Outcome.REJECTED),
            ("dead", Outcome.DEAD_TOKEN),
            ("busy", None),
            ("fault", None),
        ],
    )
    def test_each_refusal_has_its_meaning(self, kind: str, outcome: Outcome | None) -> None:
        """Final for this message, final for the token, for now, or our own fault: each as the provider says it."""
        means = outcome or {"busy": self.busy_means, "fault": self.fault_means}[kind]

        async def law(s: Stage) -> None:
            assert (await s.send()).outcome is Outcome.DELIVERED  # who never delivered may call no token dead
            reply: Reply = getattr(self, kind)
            answer = await answer_to(s, reply)
            assert (answer.outcome, answer.status, answer.reason) == (means, self.status_of(reply), reply.reason)
            assert bool(answer.retry_after_us) == (means in WAITING)

        self.play(law)

    def test_what_no_request_can_carry_is_rejected_alone(self) -> None:
        """Half of a surrogate pair, a number without end: rejected here, and what is sent beside it arrives."""

        async def law(s: Stage) -> None:
            wrong: list[dict[str, Any]] = [{"title": "\ud800"}, {"data": {"a": "\ud800"}}, {"data": {"a": 10**5000}}]
            devices = [await s.device() for _ in range(2 * len(wrong))]
            fields: list[dict[str, Any]] = [*wrong, *({} for _ in wrong)]
            answers = await asyncio.gather(
                *(s.send(device, **each) for device, each in zip(devices, fields, strict=True))
            )
            assert [(a.outcome, a.status) for a in answers[:3]] == [(Outcome.REJECTED, None)] * 3
            assert {a.outcome for a in answers[3:]} == {Outcome.DELIVERED}
            assert len(await s.arrivals()) == len(wrong)

        self.play(law)

    def test_retry_after(self) -> None:
        """Retry-After is handed on and never slept: in seconds, and as a date by the server's own clock."""
        now = dt.datetime(2031, 5, 1, 12, 0, tzinfo=dt.UTC)
        then = now + dt.timedelta(seconds=110)
        date, until = (email.utils.format_datetime(at, usegmt=True) for at in (now, then))
        asked = [{"Retry-After": "110"}, {"Retry-After": until, "Date": date}]

        async def law(s: Stage) -> None:
            began = time.monotonic()
            reply, outcome = self.busy, self.busy_means
            for headers in asked:
                answer = await answer_to(s, replace(reply, headers=headers))
                assert (answer.outcome, answer.retry_after_us) == (outcome, 110 * SECOND_US)
            for nonsense in ("soon", "-5", "9" * 400):
                answer = await answer_to(s, replace(reply, headers={"Retry-After": nonsense}))
                assert answer.outcome is outcome
                assert 0 < (answer.retry_after_us or 0) <= 86_400 * SECOND_US
            assert time.monotonic() - began < 110, "it is not slept"

        self.play(law)

    @pytest.mark.parametrize(
        "reply", [Reply(500), Reply(503, "NeverHeardOf"), Reply(599), PAGE], ids=lambda r: r.status
    )
    def test_an_error_of_the_server_is_unknown(self, reply: Reply) -> None:
        """After a 5xx, even a proxy's HTML, nobody knows whether it was delivered; it is told when to try again."""

        async def law(s: Stage) -> None:
            answer = await answer_to(s, reply)
            assert (answer.outcome, answer.status) == (Outcome.UNKNOWN, reply.status)
            assert answer.retry_after_us
            assert "<" not in answer.reason

        self.play(law)

    @pytest.mark.parametrize(
        "reply",
        [Reply(400, "NeverHeardOf"), Reply(418), Reply(404, "<html>"), Reply(302, "<html>")],
        ids=lambda r: r.status,
    )
    def test_what_was_never_heard_of_is_an_answer(self, reply: Reply) -> None:
        """A status or reason that no documentation has is an answer like any other: refused, nothing delivered."""

        async def law(s: Stage) -> None:
            answer = await answer_to(s, reply)
            refused = {Outcome.DEAD_TOKEN} if reply.status in self.gone else {Outcome.REJECTED, Outcome.FAULT}
            assert answer.outcome in refused
            assert answer.status == reply.status

        self.play(law)

    def test_a_silent_server_is_unknown_by_the_deadline(self) -> None:
        """A request that left and was not answered is UNKNOWN when its time is over; the next one is delivered."""

        async def law(s: Stage) -> None:
            await s.send()
            began = time.monotonic()
            answer = await s.send(await s.device(SILENT))
            assert (answer.outcome, answer.status) == (Outcome.UNKNOWN, None)
            assert time.monotonic() - began > 0.9
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
            assert len(await s.arrivals()) == 3

        self.play(law, timeout_us=SECOND_US)

    def test_a_server_that_hangs_up_is_unknown(self) -> None:
        """A connection that ends in place of an answer leaves the send UNKNOWN; it was sent once."""

        async def law(s: Stage) -> None:
            device = await s.device(Reply(200, drop=True), Reply(200))
            assert (await s.send(device)).outcome is Outcome.UNKNOWN
            assert len(await s.arrivals()) == 1
            assert (await s.insist(device)).outcome is Outcome.DELIVERED

        self.play(law)

    def test_a_cut_in_a_batch(self) -> None:
        """Each of those under way when the network breaks is answered, UNSENT only if it never arrived."""

        async def law(s: Stage) -> None:
            await s.send()
            devices = [await s.device(SILENT) for _ in range(45)]  # fewer than any provider has connections
            sends = [asyncio.create_task(s.send(device)) for device in devices]
            await s.reach(20)
            await s.cut()
            async with asyncio.timeout(ANSWER_US / SECOND_US - 1):
                answers = await asyncio.gather(*sends)
            assert {answer.outcome for answer in answers} <= {Outcome.UNKNOWN, Outcome.UNSENT}
            assert Outcome.UNKNOWN in {answer.outcome for answer in answers}
            arrived = {arrival.token for arrival in await s.arrivals()}
            for device, answer in zip(devices, answers, strict=True):
                if answer.outcome is Outcome.UNSENT:
                    assert self.scripted_as(device) not in arrived
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

        self.play(law)

    def test_an_idle_close_does_not_lose_the_next(self) -> None:
        """A connection that the server closed while it was idle costs the next send nothing but a new connection."""

        async def law(s: Stage) -> None:
            for _ in range(3):
                device = await s.device()
                assert (await s.insist(device)).outcome is Outcome.DELIVERED
                await s.cut()
                await s.arrivals()  # by then the end of the connection has been told
                assert len(await s.arrivals(device)) == 1

        self.play(law)

    def test_a_server_that_is_away(self) -> None:
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
            assert 0 < (answers[-1].retry_after_us or 0) <= 30 * SECOND_US
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
            assert len(await s.arrivals()) == 2

        self.play(law)

    def test_no_storm_of_connections(self) -> None:
        """Where a connection ends as soon as it is made, sends wait as they are told to, and none tries in between."""
        accepted: list[float] = []

        def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(asyncio.get_running_loop().time())
            writer.close()

        async def run() -> None:
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            endpoint = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with self.stage(endpoint=endpoint) as s:
                first = await s.send()
                answers = [first, *await asyncio.gather(*(s.send() for _ in range(50)))]
                assert {answer.outcome for answer in answers} == {Outcome.UNSENT}
                assert all(0 < (answer.retry_after_us or 0) <= 30 * SECOND_US for answer in answers)
                # The wait began after the first was accepted, and may be over before the last of these sends begins.
                again = accepted[0] + (first.retry_after_us or 0) / SECOND_US
                assert all(at >= again for at in accepted[1:])
            server.close()
            await server.wait_closed()

        asyncio.run(run())

    def test_every_call_has_one_true_answer(self) -> None:
        """No call raises whatever servers do, DELIVERED arrived, UNSENT did not, and none is taken twice."""
        troubles = [
            self.rejected, self.dead, self.busy, self.fault, PAGE, SILENT, Reply(500), Reply(400, "NeverHeardOf"),
            Reply(200, delay_ms=100), Reply(200, delay_ms=700), Reply(200), Reply(200),
        ]  # fmt: skip
        dice = random.Random(20261121)

        async def law(s: Stage) -> None:
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED  # it has signed in
            devices = [await s.device(dice.choice(troubles)) for _ in range(150)]
            sends = []
            for number, device in enumerate(devices):
                sends.append(asyncio.create_task(s.send(device, within_s=dice.choice([-1, 0.01, 5, 5, 5]))))
                if number in {60, 110}:
                    await asyncio.sleep(0.05)
                    await s.cut()
                elif number % 10 == 0:
                    await asyncio.sleep(0)
            async with asyncio.timeout(TIMEOUT_S):
                answers = await asyncio.gather(*sends)
            arrivals = await s.arrivals()
            # What was refused with others in one request may be asked for again alone.
            taken = Counter(arrival.token for arrival in arrivals if arrival.status in {0, 200})
            assert max(taken.values()) == 1
            arrived = {arrival.token for arrival in arrivals}
            for device, answer in zip(devices, answers, strict=True):
                assert isinstance(answer, Answer)
                if answer.outcome is not Outcome.UNKNOWN:
                    assert (self.scripted_as(device) in arrived) == (answer.outcome is not Outcome.UNSENT), answer
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

        self.play(law, timeout_us=500_000)

    def test_closing_answers_what_is_under_way(self) -> None:
        """`close` does not wait for a silent server: what has left is UNKNOWN, what has not is UNSENT."""

        async def law(s: Stage) -> None:
            await s.send()
            devices = [await s.device(SILENT) for _ in range(20)]
            sends = [asyncio.create_task(s.send(device)) for device in devices]
            await s.reach(1 + len(devices))
            last = asyncio.create_task(s.send(await s.device(SILENT)))
            async with asyncio.timeout(ANSWER_US / SECOND_US - 1):
                await s.provider.close()
                answers = await asyncio.gather(*sends)
                assert (await last).outcome in {Outcome.UNKNOWN, Outcome.UNSENT}
            assert {answer.outcome for answer in answers} == {Outcome.UNKNOWN}

        self.play(law)

    def test_the_certificate_of_somebody_else(self) -> None:
        """Nothing is sent to a server that shows another host's certificate; once it shows its own, it is sent to."""

        async def law(s: Stage) -> None:
            await s.tell(wrong_name=True)
            try:
                answer = await s.send()
                assert (answer.outcome, await s.arrivals()) == (Outcome.UNSENT, [])
            finally:
                await s.tell(wrong_name=False)
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

        self.play(law)

    def test_a_half_dead_server(self) -> None:
        """A server that takes and never answers leaves nobody without an answer, and is left for one that does."""

        async def law(s: Stage) -> None:
            assert (await s.send()).outcome is Outcome.DELIVERED
            await s.tell(silent=True)
            try:
                answers = await asyncio.gather(*(s.send() for _ in range(5)))
                assert {answer.outcome for answer in answers} <= {Outcome.UNKNOWN, Outcome.UNSENT}
            finally:
                await s.tell(silent=False)
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

        self.play(law, timeout_us=SECOND_US)

    def test_a_connection_that_died_of_idleness(self) -> None:
        """The first send into a connection that a firewall has forgotten is unknown, the next one is delivered."""

        async def law(s: Stage) -> None:
            assert (await s.send()).outcome is Outcome.DELIVERED
            await asyncio.sleep(0.3)  # longer than the idle time
            await s.tell(idle_s=0.2)
            try:
                assert (await s.send()).outcome is Outcome.UNKNOWN
            finally:
                await s.tell(idle_s=0)
            assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

        self.play(law, timeout_us=SECOND_US)

    def test_credentials_that_end_early(self) -> None:
        """Access that the server ended before its time burns no message: a fault or a retry, never a refusal."""

        async def law(s: Stage) -> None:
            assert (await s.send()).outcome is Outcome.DELIVERED
            await s.tell(expire_tokens=True)
            answer = await s.send()
            assert answer.outcome in {Outcome.FAULT, Outcome.RETRY, Outcome.UNSENT, Outcome.DELIVERED}, answer

        self.play(law)

    def test_a_probe_shows_life_and_sends_nothing(self) -> None:
        """A server that answers is alive, after `close` too; one that is gone or reads nothing is not."""

        async def law(s: Stage) -> None:
            device = await s.device()
            assert s.provider.service(device) == s.provider.service(device)
            assert await s.provider.probe(device)
            if self.networked:
                await s.tell(silent=True)
                assert not await s.provider.probe(device)
                await s.tell(silent=False)
                assert await s.provider.probe(device)
                await s.stop()
                assert not await s.provider.probe(device)
                await s.start()
            await s.provider.close()
            assert await s.provider.probe(device)
            assert await s.arrivals(device) == []

        self.play(law, timeout_us=SECOND_US)


class ProviderContract(NetworkContract):
    """All that a platform promises, its protocol and its provider; its simulator runs in the process of the tests.

    wrong_tokens: what is no token of this platform. environ: the variables that its section reads secrets from.
    max_bytes: so long a body at the most fits into a message; None where the platform has no such limit.
    """

    wrong_tokens: ClassVar[Sequence[str]] = ("", " ", "not a token\n", "\ud800")
    environ: ClassVar[dict[str, str]] = {}
    max_bytes: ClassVar[int | None] = 5000

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        """A new simulator, not yet started."""
        raise NotImplementedError

    def section(self, simulator: Simulator) -> dict[str, Any]:
        """Return the section `providers.<platform>` that sends to this simulator, without `endpoint` and `ca_file`.

        These two and `timeout` are given beside it.
        """
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def stage(self, *, timeout_us: int = ANSWER_US, endpoint: str | None = None) -> AsyncIterator[Stage]:
        """A stage with a new provider and a new simulator. endpoint: in place of the simulator's."""
        from notifier.simulators.control import Control  # noqa: PLC0415 - not importable where apns2 is

        with TemporaryDirectory() as name:
            folder, log = Path(name), WireLog()
            certificates = make_certificates(folder)
            simulator = self.simulator(certificates, log)
            control = Control(folder / "control", log, [simulator])
            await control.start()
            await simulator.start()
            server = Line(*await asyncio.open_unix_connection(folder / "control", limit=2**20))
            where = endpoint or simulator.url
            provider = self._provider(simulator, where, certificates.ca_file, timeout_us)
            try:
                yield Stage(self, provider, where, server, needs=self.needs)
            finally:
                await provider.close()
                await server.close()
                await control.close()
                await simulator.close()

    def _provider(self, simulator: Simulator, endpoint: str, ca_file: Path, timeout_us: int) -> Provider:
        section = self.section(simulator) | {
            "endpoint": endpoint,
            "ca_file": str(ca_file),
            "timeout": f"{timeout_us // 1000}ms",
        }
        settings = parse_settings(json.dumps({"providers": {self.platform: section}}))
        platform = find(self.platform)
        assert platform is not None
        provider: Provider = platform.provider(settings.providers.platforms()[self.platform], None, Build(self.environ))
        assert provider.platform == self.platform
        return provider

    # The protocol.

    def test_it_is_installed_under_its_name(self) -> None:
        """The entry point leads to the platform, which is written for this version of the protocol."""
        platform = find(self.platform)
        assert platform is not None
        assert (platform.name, platform.protocol) == (self.platform, PROTOCOL)
        assert platform.settings().platform == self.platform

    def test_a_mistake_in_the_yaml_is_told(self) -> None:
        """An unknown key is refused with its name; a section that only prints needs nothing else."""
        with pytest.raises(SettingsError, match=rf"providers\.{self.platform}\.no_such_key: unknown key"):
            parse_settings(json.dumps({"providers": {self.platform: {"client": "console", "no_such_key": 1}}}))
        printing = parse_settings(json.dumps({"providers": {self.platform: {"client": "console"}}}))
        assert printing.providers.platforms()[self.platform].prints

    def test_a_token_is_checked_before_it_is_enqueued(self) -> None:
        """A device of the platform is taken; what is no token is refused, by its place, and never shown."""
        good = self.device(next(_numbers), "https://127.0.0.1:1")
        notification = Notification(user="u", devices=[good], title="Hello", **self.needs)
        notification.validate()
        check_payload(notification)
        assert TARGET.fullmatch(encode_targets(notification)), "the scripts can read what kind it is"
        for token in self.wrong_tokens:
            with pytest.raises(InvalidNotificationError, match=r"devices\[0\]\.token: ") as caught:
                Notification(user="u", devices=[Device(self.platform, token)], title="Hello").validate()
            assert not token.strip() or token not in str(caught.value)

    def test_what_is_too_large_is_refused_before_it_is_enqueued(self) -> None:
        """Not by the provider hours later, when nobody waits for the answer any more."""
        if self.max_bytes is None:
            pytest.skip("the platform has no limit")
        device = self.device(next(_numbers), "https://127.0.0.1:1")
        with pytest.raises(InvalidNotificationError, match="bytes on the wire"):
            check_payload(Notification(user="u", devices=[device], title="Hello", body="é" * (self.max_bytes // 2 + 1)))
