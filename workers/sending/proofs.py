"""Proofs that a provider has read a send that it did not answer.

A send without an answer may still reach its user while its bytes are in some buffer. The provider has read them once it
has answered two exchanges that began after them (`Provider.probe`); or, if the connection can tell, once it has
answered a later request on the same connection (`Answer.passed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog
from redis.backoff import EqualJitterBackoff

from notifier.notification import Device
from notifier.providers.contract import Provider
from notifier.queue.calls import Settlement

APART_S: Final = 0.2  # between two probes of a healthy service
BACKOFF: Final = EqualJitterBackoff(cap=4.0, base=0.5)  # seconds after a failed probe
MANY: Final = 10  # failures; more make no wait longer
# No TCP connection waits longer for its peer, so nothing is on its way after this time. A service that is silent for
# so long may never be back: a browser's service may have ended for good.
MAX_SILENCE_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Silence:
    """A device that got a send without an answer. passed: see `Answer.passed`; None if it is unknown."""

    provider: Provider
    device: Device
    passed: asyncio.Future[bool] | None = None


@dataclass(frozen=True, slots=True)
class Unproven:
    """The result of a send that some providers did not answer: its settlement waits until they have read the send.

    answered: the final answers by device, as JSON, in case another worker goes on with the job.
    """

    settlement: Settlement
    silences: tuple[Silence, ...]
    answered: str = ""


class Proofs:
    """Waits for proofs. At most one probe of a service is under way, for all sends that wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._log = structlog.get_logger("notifier.worker")

    async def of(self, silences: Iterable[Silence], after_s: float = 0.0) -> None:
        """Return once the providers have read all these sends, or no longer can; after `after_s` at least."""
        await asyncio.sleep(after_s)
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
        """Probe until no send waits. A send that comes during a probe waits for the next one: this began too early."""
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
                    await asyncio.sleep(BACKOFF.compute(failures))
                    failures = min(failures + 1, MANY)
        finally:
            del self._waiting[service], self._probing[service]

    async def _lives(self, silence: Silence) -> bool:
        try:
            return await silence.provider.probe(silence.device)
        except Exception:  # noqa: BLE001 - whatever a driver raises is no sign of life
            self._log.exception("provider_broke", platform=silence.device.platform)
            return False
