"""Proofs: when a provider has surely read what it did not answer.

A send that got no answer may reach its user as long as its bytes lie in some buffer. They have been read once the
provider has answered two exchanges that were begun after them (`Provider.probe`); or, where its connection can tell,
once it has answered something that was asked for on that connection after them (`Answer.passed`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from notifier.notification import Device
from notifier.providers.contract import Provider
from notifier.queue.calls import Settlement

APART_S: Final = 0.2  # between two probes of one service, also while it is well
BACKOFF_S: Final = (0.5, 4.0)  # after a probe that came to nothing, doubled each time
JITTER: Final = (0.5, 1.0)
# No TCP connection waits longer for its peer, so nothing is on its way any more. A service that has not been back by
# then may never be: a browser's may have ended for good.
MAX_SILENCE_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Silence:
    """A device that was sent to and for which nobody answered. passed: of the `Answer`, where there was one."""

    provider: Provider
    device: Device
    passed: asyncio.Future[bool] | None = None


@dataclass(frozen=True, slots=True)
class Unproven:
    """The outcome of a send for which not everybody answered; not to be settled before their providers have read it.

    answered: what is final of each device, as JSON, should somebody else have to go on with it.
    """

    settlement: Settlement
    silences: tuple[Silence, ...]
    answered: str = ""


class Proofs:
    """One worker's: at most one probe of a service is under way, for all who wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._log = structlog.get_logger("notifier.worker")

    async def of(self, silences: Iterable[Silence]) -> None:
        """Return once all these have been read by their providers, or cannot be any more."""
        try:
            async with asyncio.timeout(MAX_SILENCE_S):
                await asyncio.gather(*(self._of(silence) for silence in silences))
        except TimeoutError:
            self._log.warning("no_proof", after_s=MAX_SILENCE_S)

    async def _of(self, silence: Silence) -> None:
        if silence.passed is not None and await asyncio.shield(silence.passed):
            return
        service = silence.provider.service(silence.device)
        proof = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(service, []).append(proof)
        if service not in self._probing:
            self._probing[service] = asyncio.create_task(self._probe(service, silence))
        await proof

    async def _probe(self, service: str, silence: Silence) -> None:
        """Probe until nobody waits. Who comes while a probe is under way waits for the next: that began too early."""
        first, most = BACKOFF_S
        failures = 0
        try:
            while any(not proof.done() for proof in self._waiting[service]):
                asking = self._waiting[service]
                self._waiting[service] = []
                if await self._lives(silence):
                    failures = 0
                    for proof in asking:
                        if not proof.done():
                            proof.set_result(None)
                    await asyncio.sleep(APART_S)
                else:
                    self._waiting[service] += asking
                    if not failures:
                        self._log.info("silent", service=service)
                    failures += 1
                    wait_s = min(most, first * 2 ** min(failures - 1, 10))
                    await asyncio.sleep(wait_s * random.uniform(*JITTER))  # noqa: S311 - jitter
        finally:
            del self._waiting[service], self._probing[service]

    async def _lives(self, silence: Silence) -> bool:
        try:
            return await silence.provider.probe(silence.device)
        except Exception:  # noqa: BLE001 - whatever a driver raises is no sign of life
            self._log.exception("provider_broke", platform=silence.device.platform)
            return False
