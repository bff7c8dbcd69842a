"""The part that all providers over kept HTTP/1.1 connections share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from notifier.notification import Device
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.transport.backoff import SECOND_US, Turns
from notifier.providers.transport.http1 import Pool, http1_lives, tls_context


class PooledProvider(ABC):
    """Sends over kept connections, and keeps the order of each device's sends.

    settings: of one app. more: arguments of its `Pool`. Raises SettingsError if the CA file cannot be used.
    """

    platform: str

    def __init__(self, settings: Any, **more: Any) -> None:
        self._timeout_s = settings.timeout_us / SECOND_US
        self._origin: str = getattr(settings, "endpoint", "")  # '' if each device names its server, see `service`
        tls = tls_context(settings.ca_file, f"providers.{self.platform}.ca_file")
        self._pool = Pool(self.platform, tls=tls, timeout_s=self._timeout_s, **more)
        self._turns = Turns()

    async def send(self, dispatch: Dispatch) -> Answer:
        """Send to one device; see `Provider.send`. One device's sends reach its server in the order of the calls."""
        async with self._turns.turn(dispatch.device.token, dispatch.send_by) as held:
            return await self._send(dispatch) if held else Answer(Outcome.UNSENT, reason="TooLate")

    @abstractmethod
    async def _send(self, dispatch: Dispatch) -> Answer:
        """Send while it is the device's turn."""

    def service(self, device: Device) -> str:
        del device
        return self._origin

    async def probe(self, device: Device) -> bool:
        return await http1_lives(self.service(device), self._pool.tls, self._timeout_s)

    async def close(self) -> None:
        await self._pool.close()
