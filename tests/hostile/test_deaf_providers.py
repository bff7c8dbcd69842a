"""Providers that never answer, never end or cannot be cancelled: the worker has deadlines of its own."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from notifier.notification import Device, Notification
from notifier.notification.job import encode_data
from notifier.providers.contract import Answer, Outcome
from notifier.queue.calls import Leased, Settlement
from notifier.rules.category import Category
from workers.loop.in_flight import Flights
from workers.loop.parts import Parts, Tuning
from workers.loop.turns import Turns
from workers.sending.capacity import Capacity
from workers.sending.proofs import Unproven
from workers.sending.sender import Backoff, Sender

CATEGORY = Category("default", attempts=3)
DEVICES = [Device("apns", f"{n:02x}" * 32) for n in range(2)]


class Deaf:
    """Never answers the devices that it is deaf to. stubborn: it does not hear that it is cancelled either."""

    platform = "apns"

    def __init__(self, *deaf_to: Device, stubborn: bool = False) -> None:
        self.deaf_to = {device.token for device in deaf_to}
        self.stubborn = stubborn
        self.released = asyncio.Event()

    async def send(self, dispatch: Any) -> Answer:
        if dispatch.device.token not in self.deaf_to:
            return Answer(Outcome.DELIVERED)
        await self.never()
        return Answer(Outcome.DELIVERED)

    async def never(self) -> None:
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    def service(self, _device: Any) -> str:
        return "deaf"

    async def probe(self, _device: Any) -> bool:
        return True

    async def close(self) -> None:
        await self.never()


WATCHING: Any = SimpleNamespace(record=lambda _route, answer, *_: (answer, True), not_sent=lambda: None)


class Recorded(Flights):
    """Flights whose settlements go nowhere."""

    def __init__(self, sender: Sender) -> None:
        tuning = Tuning(batch=10, in_flight=10, lease_us=10**6, timeout_us=0, grace_us=0)
        idle: Any = SimpleNamespace(wake=asyncio.Event())
        nobody: Any = None
        parts = Parts(
            name="w", lanes=(), redis=nobody, idle=idle, sender=sender, circuits=WATCHING,
            turns=Turns(Capacity({}), batch=1, most=1), rq_jobs=nobody, tuning=tuning,
        )  # fmt: skip
        super().__init__(parts)
        self._policies = SimpleNamespace(category=lambda _: CATEGORY)  # type: ignore[assignment]
        self.settled: list[Settlement] = []
        self.left: list[str] = []

    async def _settle(self) -> None:
        self.settled += self._settlements
        self._settlements.clear()

    async def _lease(self, flights: Sequence[tuple[Leased, str]], lease_us: int) -> bool:
        self.left += [leased.job_id for leased, _ in flights if lease_us == 0]
        return True

    async def drain(self) -> None:
        await super().drain()
        while self._unproven:  # a provider that is well has read at once what it did not answer
            await asyncio.wait(self._unproven)
            await super().drain()


def leased(devices: Sequence[Device]) -> Leased:
    return Leased("job", "7", "anna", "default", encode_data(Notification("anna", devices, "Hi")), None)


def sender(provider: Deaf) -> Sender:
    return Sender({"apns": provider}, Backoff(1, 1), answer_s=0.05, lease_s=0.05)


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES], ids=["one device", "two devices"])
async def test_a_provider_that_never_answers_is_unknown(devices: Sequence[Device]) -> None:
    """Past the worker's own deadline no answer is UNKNOWN and said; what another device answered is kept."""
    with capture_logs() as lines:
        now = asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            made = await sender(Deaf(DEVICES[0])).send(leased(devices), CATEGORY, now, WATCHING)
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["provider_broke"]
    assert isinstance(made, Unproven)
    settled = made.settlement
    assert (settled.state, settled.reached) == ("later", True)
    assert settled.answered == ('{"1": "delivered"}' if len(devices) > 1 else "")


async def test_the_workers_end_is_no_missed_deadline() -> None:
    """A send that the worker itself breaks off is cancelled, and not taken for one without an answer."""
    now = asyncio.get_running_loop().time()
    sending = asyncio.create_task(sender(Deaf(DEVICES[0])).send(leased(DEVICES[:1]), CATEGORY, now + 100, WATCHING))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


class Cancelling(Deaf):
    """A task of its own is cancelled while it sends, and it lets that out."""

    async def never(self) -> None:
        raise asyncio.CancelledError


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES], ids=["one device", "two devices"])
async def test_what_a_provider_cancels_is_unknown(devices: Sequence[Device]) -> None:
    """The worker goes on: nobody has told it to end. Else its lease would run out unnoticed."""
    with capture_logs() as lines:
        now = asyncio.get_running_loop().time()
        settled = await sender(Cancelling(DEVICES[0])).send(leased(devices), CATEGORY, now, WATCHING)
    assert [line["reason"] for line in lines if line["event"] == "provider_broke"] == ["it cancelled the send itself"]
    assert isinstance(settled, Unproven)
    assert (settled.settlement.state, settled.settlement.reached) == ("later", True)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_drain_has_an_end(stubborn: bool) -> None:
    """Whatever a provider does, a drain ends and what was in flight is settled, its permit spent."""
    provider = Deaf(DEVICES[0], stubborn=stubborn)
    flights = Recorded(sender(provider))
    flights.begin(leased(DEVICES[:1]), asyncio.get_running_loop().time())
    async with asyncio.timeout(20):
        await flights.drain()
    assert [(one.state, one.reached) for one in flights.settled] == [("backlog" if stubborn else "later", True)]
    provider.released.set()


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_workers_end_has_an_end(stubborn: bool) -> None:
    """Neither a send that does not end nor a provider that does not close holds up the worker's end."""
    provider = Deaf(DEVICES[0], stubborn=stubborn)
    flights = Recorded(sender(provider))
    flights.begin(leased(DEVICES[:1]), asyncio.get_running_loop().time() + 100)
    await asyncio.sleep(0)
    with capture_logs():
        async with asyncio.timeout(20):
            await flights.end([], asyncio.Event())
    assert (flights.settled, flights.left) == ([], ["job"]), "another worker is to find out whether it was read"
    provider.released.set()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


class Slow:
    """Answers a device once a byte has come over its socket."""

    platform = "apns"

    def __init__(self, near: socket.socket) -> None:
        self.near = near
        self.begun = asyncio.Event()

    async def send(self, _: Any) -> Answer:
        self.begun.set()
        await asyncio.get_running_loop().sock_recv(self.near, 1)
        return Answer(Outcome.DELIVERED)

    def service(self, _device: Any) -> str:
        return "slow"

    async def probe(self, _device: Any) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("answered", [True, False])
def test_a_stop_of_the_whole_process_is_no_fault_of_a_provider(answered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop the clock is past every deadline at once. What was answered meanwhile counts as answered.

    What was not is cancelled like any other that is late, and is not taken for a provider that cannot be cancelled.
    """

    async def run(near: socket.socket, far: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        provider: Any = Slow(near)
        flights = Recorded(sender(provider))
        flights.begin(leased(DEVICES[:1]), loop.time() + 100)
        await provider.begun.wait()
        now = loop.time
        if answered:
            far.send(b"x")
        monkeypatch.setattr(loop, "time", lambda: now() + 1000)
        with capture_logs() as lines:
            async with asyncio.timeout(20):
                await flights.drain()
        assert [(one.state, one.reached) for one in flights.settled] == [("delivered" if answered else "later", True)]
        errors = [line["event"] for line in lines if line["log_level"] == "error"]
        assert errors == ([] if answered else ["provider_broke"])
        assert "it cannot be cancelled" not in str(lines)

    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        asyncio.run(run(near, far))
