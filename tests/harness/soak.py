"""Connections over time: two providers are held through trouble.

Idle times, GOAWAYs, cuts, a connection gone half dead, a server restarted under load. A provider may open as many
connections as that forces, and at most one more each time; what it was given must all end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from notifier import Device, Notification
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.contract import Dispatch, Outcome, Provider
from notifier.providers.fcm.provider import FcmProvider
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import make_apns_key, make_certificates
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.wire import WireLog
from tests.harness.sections import section
from tests.harness.support import KEY_ID, TEAM_ID, TOPIC

DEVICES: Final = 100
BETWEEN_BURSTS_S: Final = 0.05
LEAST_WAIT_S: Final = 0.02  # before what was not sent is sent again, where the provider names no time
LEAST_PUSHES: Final = 15  # after each event, however slow the machine is
DOWN_S: Final = 2.0  # of a restart
LATENCY_MS: Final = 5.0
AMID_S: Final = 0.2  # well over the time between two bursts


class Forgetful(WireLog):
    """A log that keeps nothing: ten minutes are many arrivals."""

    def record(self, arrival: object) -> None:
        """Forget it."""


@dataclass
class Soak:
    """One provider at one simulator. opened: how many connections the simulator has seen in all.

    at_once: how many sends make a burst. idle_s: of one idle time. steady_s: of the traffic after each event, at least.
    ended: by outcome; answered: set whenever one has. forced and allowed: connections so far, the latter with one more
    for each event.
    """

    simulator: Any
    provider: Provider
    opened: Callable[[], int]
    at_once: int
    idle_s: float
    steady_s: float
    given: int = 0
    forced: int = 0
    allowed: int = 0
    ended: Counter[Outcome] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _resting: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, events: Sequence[Event]) -> None:
        """Let all of it happen, one after the other, under traffic."""
        traffic = asyncio.create_task(self._keep_sending())
        try:
            for event in (Event("first", _nothing, 1), *events):
                before = self.opened()
                await event.happen(self)
                self._going.set()
                enough = self.given + LEAST_PUSHES
                await asyncio.sleep(self.steady_s)
                while self.given < enough:
                    self.answered.clear()
                    await self.answered.wait()
                self.forced += event.forces
                self.allowed += event.forces + bool(event.forces)
                self.notes.append(f"{event.name} {self.opened() - before}")
            await self.rest()
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)

    async def rest(self) -> None:
        """Stop the traffic and wait until all of it has ended."""
        self._going.clear()
        await self._resting.wait()

    async def _keep_sending(self) -> None:
        while True:
            if not self._going.is_set():
                self._resting.set()
                await self._going.wait()
                self._resting.clear()
            await asyncio.gather(*(self._push(self.given + n) for n in range(self.at_once)))
            await asyncio.sleep(BETWEEN_BURSTS_S)

    async def _push(self, number: int) -> None:
        """Send one until it ends: what was not sent is sent again when the provider says, as a worker does."""
        self.given += 1
        device = Device(self.provider.platform, f"{number % DEVICES:064x}")
        notification = Notification(user="u", devices=[device], title="Your order")
        loop = asyncio.get_running_loop()
        while True:
            answer = await self.provider.send(Dispatch(f"job-{number}", device, notification, None, loop.time() + 25))
            if answer.outcome is not Outcome.UNSENT:
                break
            await asyncio.sleep(max((answer.retry_after_us or 0) / 1e6, LEAST_WAIT_S))
        self.ended[answer.outcome] += 1
        self.answered.set()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens, and how many new connections it forces."""

    name: str
    happen: Callable[[Soak], Awaitable[None]]
    forces: int


async def _nothing(soak: Soak) -> None:
    """Begin."""


async def _idle(soak: Soak) -> None:
    await soak.rest()
    await asyncio.sleep(soak.idle_s)


async def _go_away(soak: Soak) -> None:
    soak.simulator.go_away()


async def _go_away_amid(soak: Soak) -> None:
    """A whole burst is on its way, and half of it is never processed."""
    soak.simulator.latency_ms = 1000 * AMID_S
    await asyncio.sleep(AMID_S / 2)
    soak.simulator.go_away(keep=0.5)
    soak.simulator.latency_ms = LATENCY_MS


async def _cut(soak: Soak) -> None:
    soak.simulator.cut()


async def _cut_while_idle(soak: Soak) -> None:
    await soak.rest()
    soak.simulator.cut()
    await asyncio.sleep(soak.steady_s)


async def _half_dead(soak: Soak) -> None:
    """What is connected never hears another byte; who connects anew does."""
    soak.simulator.silent = True
    soak.simulator.silent = False


async def _restart(soak: Soak) -> None:
    await soak.simulator.close()
    await asyncio.sleep(DOWN_S)
    await soak.simulator.start()
    # The client's own backoff may be longer than the traffic after this event: what follows needs a connection.
    soak.answered.clear()
    await soak.answered.wait()


async def _one_stream(soak: Soak) -> None:
    soak.simulator.max_streams = 1
    await asyncio.sleep(soak.steady_s)
    soak.simulator.max_streams = 1000


APNS: Final = (
    Event("idle", _idle, 0),
    Event("GOAWAY", _go_away, 1),
    Event("GOAWAY in mid-batch", _go_away_amid, 1),
    Event("cut", _cut, 1),
    Event("half dead", _half_dead, 1),
    Event("idle", _idle, 0),
    Event("cut while idle", _cut_while_idle, 1),
    Event("one stream", _one_stream, 0),
    Event("restart", _restart, 1),
    Event("GOAWAY", _go_away, 1),
    Event("idle", _idle, 0),
    Event("GOAWAY", _go_away, 1),
)
FCM: Final = (
    Event("idle past the keep-alive", _idle, 1),
    Event("cut", _cut, 1),
    Event("half dead", _half_dead, 1),
    Event("cut while idle", _cut_while_idle, 1),
    Event("idle past the keep-alive", _idle, 1),
    Event("restart", _restart, 1),
)


@contextlib.asynccontextmanager
async def apns(folder: Path, *, idle_s: float, steady_s: float, timeout_us: int = 5_000_000) -> AsyncIterator[Soak]:
    """APNs, twenty at once."""
    certificates = make_certificates(folder)
    key_file, public = make_apns_key(folder, KEY_ID)
    simulator = ApnsSimulator(
        certificates=certificates,
        log=Forgetful(),
        topics={TOPIC},
        team_keys={KEY_ID: (TEAM_ID, public)},
        latency_ms=LATENCY_MS,
    )
    await simulator.start()
    keys = {"team_id": TEAM_ID, "key_id": KEY_ID, "topic": TOPIC, "endpoint": simulator.url}
    settings = section("apns", ca_file=certificates.ca_file, timeout_us=timeout_us, **keys)
    provider = ApnsProvider(settings, key_id=KEY_ID, key=key_file.read_text(encoding="utf-8"))
    soak = Soak(simulator, provider, lambda: simulator.connections_opened, 20, idle_s, steady_s)
    async with _closing(soak):
        yield soak


@contextlib.asynccontextmanager
async def fcm(folder: Path, *, idle_s: float, steady_s: float, timeout_us: int = 5_000_000) -> AsyncIterator[Soak]:
    """FCM, one at a time: its connections carry one each, so there is one."""
    certificates = make_certificates(folder)
    project = "simulated-project"
    simulator = FcmSimulator(certificates=certificates, log=Forgetful(), latency_ms=LATENCY_MS)
    await simulator.start()
    account_file = make_service_account(folder, f"{simulator.url}/token", project)
    simulator.trust(account_file)
    settings = section("fcm", endpoint=simulator.url, ca_file=certificates.ca_file, timeout_us=timeout_us)
    provider = FcmProvider(settings, json.loads(account_file.read_text(encoding="utf-8")))
    soak = Soak(simulator, provider, lambda: len(simulator.connections), 1, idle_s, steady_s)
    async with _closing(soak):
        yield soak


@contextlib.asynccontextmanager
async def _closing(soak: Soak) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await soak.provider.close()
        await soak.simulator.close()
