"""The promises of a provider that sends to a server."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pytest

from notifier.providers.contract import Answer, Outcome
from notifier.simulators.provider_contract.sending import SendingContract
from notifier.simulators.provider_contract.stage import (
    ANSWER_US,
    PAGE,
    SECOND_US,
    SILENT,
    TIMEOUT_S,
    Stage,
    answer_to,
    on_stage,
)
from notifier.simulators.wire import Reply

WAITING: Final = frozenset({Outcome.BUSY, Outcome.FULL, Outcome.UNSENT, Outcome.FAULT})


class NetworkContract(SendingContract):
    """The promises of a provider that sends to a server.

    rejected: a reply that refuses this message for good. dead: a reply for a dead token. busy: a reply that accepts
    nothing for now, and may carry Retry-After. fault: a reply that refuses our credentials. busy_means: BUSY if `busy`
    concerns one device, FULL if it concerns all. fault_means: REJECTED if `fault` concerns one device once the server
    has accepted a message. gone: the statuses that mean a dead token, whatever the reason. own_ids: the provider
    chooses the message's id, so a retry has the same id.
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
        return reply.status

    def every_reply(self) -> Sequence[Sequence[Reply]]:
        return [[r] for r in (Reply(200), self.rejected, self.dead, self.busy, self.fault, PAGE, SILENT)]

    @on_stage()
    async def test_what_is_left_is_on_the_wire(self, s: Stage) -> None:
        """The server gets the time left, to the second, not the whole life of the notification."""
        await s.send(ttl_us=90_500_000)
        (arrival,) = await s.arrivals()
        if not self.expires:
            return
        assert arrival.ttl_us is not None
        assert abs(arrival.ttl_us - 90_500_000) <= 2 * SECOND_US

    @on_stage()
    async def test_a_retry_is_the_same_message(self, s: Stage) -> None:
        """A retry of one job to one device carries the same ids, another device or job another message id."""
        device, other = await s.device(), await s.device()
        for job_id, to in (("a", device), ("a", device), ("a", other), ("b", device)):
            await s.send(to, job_id=job_id, collapse_id="score")
        arrivals = await s.arrivals()
        assert [arrival.collapse_id for arrival in arrivals] == ["score" if self.collapses else None] * 4
        if self.own_ids:
            first, again, elsewhere, later = (arrival.message_id for arrival in arrivals)
            assert first == again
            assert len({first, elsewhere, later}) == 3

    @pytest.mark.parametrize("kind", ["rejected", "dead", "busy", "fault"])
    @on_stage()
    async def test_each_refusal_has_its_meaning(self, s: Stage, kind: str) -> None:
        """A refusal is final for the message or the token, temporary, or our own fault, as the server's reply says."""
        final = {"rejected": Outcome.REJECTED, "dead": Outcome.DEAD_TOKEN}
        means = {**final, "busy": self.busy_means, "fault": self.fault_means}[kind]
        assert (await s.send()).outcome is Outcome.DELIVERED  # only after a delivery a token may be dead
        reply: Reply = getattr(self, kind)
        answer = await answer_to(s, reply)
        assert (answer.outcome, answer.status, answer.reason) == (means, self.status_of(reply), reply.reason)
        assert bool(answer.retry_after_us) == (means in WAITING)

    @on_stage()
    async def test_what_no_request_can_carry_is_rejected_alone(self, s: Stage) -> None:
        """Content that no request can carry, such as half a surrogate pair, is rejected; sends beside it arrive."""
        wrong: list[dict[str, Any]] = [{"title": "\ud800"}, {"data": {"a": "\ud800"}}, {"data": {"a": 10**5000}}]
        devices = [await s.device() for _ in range(2 * len(wrong))]
        fields: list[dict[str, Any]] = [*wrong, *({} for _ in wrong)]
        answers = await asyncio.gather(*(s.send(device, **each) for device, each in zip(devices, fields, strict=True)))
        assert [(a.outcome, a.status) for a in answers[:3]] == [(Outcome.REJECTED, None)] * 3
        assert {a.outcome for a in answers[3:]} == {Outcome.DELIVERED}
        assert len(await s.arrivals()) == len(wrong)

    @on_stage()
    async def test_retry_after(self, s: Stage) -> None:
        """The answer hands Retry-After on, in seconds or as a date by the server's clock. The provider never sleeps."""
        now = dt.datetime(2031, 5, 1, 12, 0, tzinfo=dt.UTC)
        then = now + dt.timedelta(seconds=110)
        date, until = (email.utils.format_datetime(at, usegmt=True) for at in (now, then))
        asked = [{"Retry-After": "110"}, {"Retry-After": until, "Date": date}]
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

    @pytest.mark.parametrize(
        "reply", [Reply(500), Reply(503, "NeverHeardOf"), Reply(599), PAGE], ids=lambda r: r.status
    )
    @on_stage()
    async def test_an_error_of_the_server_is_unknown(self, s: Stage, reply: Reply) -> None:
        """After a 5xx, even a proxy's HTML, the delivery is unknown, and the answer says when to try again."""
        answer = await answer_to(s, reply)
        assert (answer.outcome, answer.status) == (Outcome.UNKNOWN, reply.status)
        assert answer.retry_after_us
        assert "<" not in answer.reason

    @pytest.mark.parametrize(
        "reply",
        [Reply(400, "NeverHeardOf"), Reply(418), Reply(404, "<html>"), Reply(302, "<html>")],
        ids=lambda r: r.status,
    )
    @on_stage()
    async def test_what_was_never_heard_of_is_an_answer(self, s: Stage, reply: Reply) -> None:
        """A status or reason that no documentation has is an answer like any other: refused, nothing delivered."""
        answer = await answer_to(s, reply)
        refused = {Outcome.DEAD_TOKEN} if reply.status in self.gone else {Outcome.REJECTED, Outcome.FAULT}
        assert answer.outcome in refused
        assert answer.status == reply.status

    @on_stage(timeout_us=SECOND_US)
    async def test_a_silent_server_is_unknown_by_the_deadline(self, s: Stage) -> None:
        """A request that left and was not answered is UNKNOWN when its time is over; the next one is delivered."""
        await s.send()
        began = time.monotonic()
        answer = await s.send(await s.device(SILENT))
        assert (answer.outcome, answer.status) == (Outcome.UNKNOWN, None)
        assert time.monotonic() - began > 0.9
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
        assert len(await s.arrivals()) == 3

    @on_stage()
    async def test_a_server_that_hangs_up_is_unknown(self, s: Stage) -> None:
        """A connection that ends in place of an answer leaves the send UNKNOWN; the message was sent once."""
        device = await s.device(Reply(200, drop=True), Reply(200))
        assert (await s.send(device)).outcome is Outcome.UNKNOWN
        assert len(await s.arrivals()) == 1
        assert (await s.insist(device)).outcome is Outcome.DELIVERED

    @on_stage()
    async def test_a_cut_in_a_batch(self, s: Stage) -> None:
        """Every send under way when the network breaks is answered, with UNSENT only if it never arrived."""
        await s.send()
        devices = [await s.device(SILENT) for _ in range(45)]  # fewer than any provider has connections
        sends = [asyncio.create_task(s.send(device)) for device in devices]
        await s.reach(20)
        everything = asyncio.gather(*sends)
        async with asyncio.timeout(ANSWER_US / SECOND_US - 1):
            while not everything.done():  # the next cut ends a send that arrives after this one
                await s.tell(cut=True)
                await asyncio.wait([everything], timeout=0.1)
        answers = everything.result()
        assert {answer.outcome for answer in answers} <= {Outcome.UNKNOWN, Outcome.UNSENT}
        assert Outcome.UNKNOWN in {answer.outcome for answer in answers}
        arrived = {arrival.token for arrival in await s.arrivals()}
        for device, answer in zip(devices, answers, strict=True):
            if answer.outcome is Outcome.UNSENT:
                assert self.scripted_as(device) not in arrived
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    @on_stage()
    async def test_an_idle_close_does_not_lose_the_next(self, s: Stage) -> None:
        """A connection that the server closed while it was idle costs the next send nothing but a new connection."""
        for _ in range(3):
            device = await s.device()
            assert (await s.insist(device)).outcome is Outcome.DELIVERED
            await s.tell(cut=True)
            assert len(await s.arrivals(device)) == 1

    @on_stage()
    async def test_a_server_that_is_away(self, s: Stage) -> None:
        """While the server is away sends are UNSENT with a wait, at once; the same client recovers when it is back."""
        await s.send()
        await s.tell(listening=False)
        try:
            answers = await asyncio.gather(*(s.send(device) for device in [await s.device() for _ in range(20)]))
            answers.append(await s.send())
        finally:
            await s.tell(listening=True)
        # A send that left before the provider saw the end of its connection may have arrived.
        assert {answer.outcome for answer in answers} <= {Outcome.UNSENT, Outcome.UNKNOWN}
        assert answers[-1].outcome is Outcome.UNSENT
        assert 0 < (answers[-1].retry_after_us or 0) <= 30 * SECOND_US
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED
        assert len(await s.arrivals()) == 2

    def test_no_storm_of_connections(self) -> None:
        """If a connection ends at once, no send connects again before the wait in the first answer is over."""
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
                # The wait began after the first connection, and may be over before the last of these sends begins.
                again = accepted[0] + (first.retry_after_us or 0) / SECOND_US
                assert all(at >= again for at in accepted[1:])
            server.close()
            await server.wait_closed()

        asyncio.run(run())

    @on_stage(timeout_us=500_000)
    async def test_every_call_has_one_true_answer(self, s: Stage) -> None:
        """No call raises, DELIVERED arrived, UNSENT did not, and nothing is accepted twice, however servers fail."""
        troubles = [
            self.rejected, self.dead, self.busy, self.fault, PAGE, SILENT, Reply(500), Reply(400, "NeverHeardOf"),
            Reply(200, delay_ms=100), Reply(200, delay_ms=3_000), Reply(200), Reply(200),
        ]  # fmt: skip
        dice = random.Random(20261121)
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED  # the provider has signed in
        devices = [await s.device(dice.choice(troubles)) for _ in range(150)]
        sends = []
        for number, device in enumerate(devices):
            sends.append(asyncio.create_task(s.send(device, within_s=dice.choice([-1, 0.01, 5, 5, 5]))))
            if number in {60, 110}:
                await asyncio.sleep(0.05)
                await s.tell(cut=True)
            elif number % 10 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*sends)
        arrivals = await s.arrivals()
        # A message that was refused in a request with others may be sent again alone.
        taken = Counter(arrival.token for arrival in arrivals if arrival.status in {0, 200})
        assert max(taken.values()) == 1
        arrived = {arrival.token for arrival in arrivals}
        for device, answer in zip(devices, answers, strict=True):
            assert isinstance(answer, Answer)
            if answer.outcome is not Outcome.UNKNOWN:
                assert (self.scripted_as(device) in arrived) == (answer.outcome is not Outcome.UNSENT), answer
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    @on_stage()
    async def test_closing_answers_what_is_under_way(self, s: Stage) -> None:
        """`close` does not wait for a silent server: a send that has left is UNKNOWN, any other UNSENT."""
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

    @on_stage()
    async def test_the_certificate_of_somebody_else(self, s: Stage) -> None:
        """A server that shows another host's certificate gets no message, until it shows its own certificate."""
        await s.tell(wrong_name=True)
        try:
            answer = await s.send()
            assert (answer.outcome, await s.arrivals()) == (Outcome.UNSENT, [])
        finally:
            await s.tell(wrong_name=False)
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    @on_stage(timeout_us=SECOND_US)
    async def test_a_half_dead_server(self, s: Stage) -> None:
        """If a server stops answering, every send still has an answer; when the server is back, a send is delivered."""
        assert (await s.send()).outcome is Outcome.DELIVERED
        await s.tell(silent=True)
        try:
            answers = await asyncio.gather(*(s.send() for _ in range(5)))
            assert {answer.outcome for answer in answers} <= {Outcome.UNKNOWN, Outcome.UNSENT}
        finally:
            await s.tell(silent=False)
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    @on_stage(timeout_us=SECOND_US)
    async def test_a_connection_that_died_of_idleness(self, s: Stage) -> None:
        """The first send into a connection that a firewall has forgotten is unknown, the next one is delivered."""
        assert (await s.send()).outcome is Outcome.DELIVERED
        await asyncio.sleep(0.3)  # longer than the idle time
        await s.tell(idle_s=0.2)
        try:
            assert (await s.send()).outcome is Outcome.UNKNOWN
        finally:
            await s.tell(idle_s=0)
        assert (await s.insist(await s.device())).outcome is Outcome.DELIVERED

    @on_stage()
    async def test_credentials_that_end_early(self, s: Stage) -> None:
        """If the server ends our access early, no message is lost: a fault or a retry, never a refusal."""
        assert (await s.send()).outcome is Outcome.DELIVERED
        await s.tell(expire_tokens=True)
        answer = await s.send()
        assert answer.outcome in {Outcome.FAULT, Outcome.RETRY, Outcome.UNSENT, Outcome.DELIVERED}, answer

    @on_stage(timeout_us=SECOND_US)
    async def test_a_probe_shows_life_and_sends_nothing(self, s: Stage) -> None:
        """A probe is true for a server that answers, after `close` too, and false for one that is gone or silent."""
        device = await s.device()
        assert s.provider.service(device) == s.provider.service(device)
        assert await s.provider.probe(device)
        if self.networked:
            await s.tell(silent=True)
            assert not await s.provider.probe(device)
            await s.tell(silent=False)
            assert await s.provider.probe(device)
            await s.tell(listening=False)
            assert not await s.provider.probe(device)
            await s.tell(listening=True)
        await s.provider.close()
        assert await s.provider.probe(device)
        assert await s.arrivals(device) == []
