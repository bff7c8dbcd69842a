"""The rigs of the contract suite: each provider against a real server, on one handle.

The servers run in a process of their own, shared by all tests of a run, because one of the providers cannot live in
an environment in which its server can: NOTIFIER_SIMULATORS_PYTHON names the interpreter that runs them, this one if
it is not set. Each test has devices that no other has.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from notifier.notification import Device
from notifier.notification.subscription import read_subscription
from notifier.providers.apns.provider import LEAST_H2
from notifier.providers.console import ConsoleProvider
from notifier.providers.contract import Provider
from notifier.simulators.provider_contract.stage import ANSWER_US, Line, Stage
from notifier.simulators.webpush_browser import subscription
from notifier.simulators.wire import Arrival, Reply


class Simulators:
    """The simulators, as a process; `told` is what they announce, `control` the socket to steer them by."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "control"
        python = os.environ.get("NOTIFIER_SIMULATORS_PYTHON", sys.executable)
        self._command = [python, "-m", "notifier.simulators", "--folder", str(folder)]
        self.told: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        assert line, f"the simulators did not start: {' '.join(self._command)}"
        self.told = json.loads(line)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.terminate()


class Rig(ABC):
    """How one provider is built, what its server's answers look like, and what of the contract it can show.

    networked: there is a server behind it; the laws of networks hold for these rigs alone.
    own_ids: the message's id is made by us, so that it can be the same at a retry.
    gone: the statuses that say by themselves, whatever the reason, that the token is dead.
    """

    name: str
    platform: str
    networked = True
    own_ids = False
    gone: frozenset[int] = frozenset()
    rejected: Reply
    dead: Reply
    busy: Reply
    fault: Reply

    @abstractmethod
    def device(self, number: int, endpoint: str) -> Device:
        """Another device for each number."""

    @abstractmethod
    def provider(self, told: Mapping[str, str], endpoint: str, timeout_us: int) -> Provider:
        """The provider, configured for the server that announced itself so."""

    def secrets(self, told: Mapping[str, str]) -> list[str]:
        """What of this provider's configuration must never be seen."""
        raise NotImplementedError

    def scripted_as(self, device: Device) -> str:
        """The name by which the server knows a device."""
        return device.token

    def read_printed(self, text: str) -> list[Arrival]:
        """The arrivals of a rig without a server."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def stage(
        self, simulators: Simulators, *, timeout_us: int = ANSWER_US, endpoint: str | None = None
    ) -> AsyncIterator[Stage]:
        """A stage with a new provider; endpoint: in place of the simulator's."""
        told = simulators.told[self.platform]
        endpoint = endpoint or told["endpoint"]
        line = Line(*await asyncio.open_unix_connection(simulators.control, limit=2**20))
        await line.ask("scripts", {})
        provider = self.provider(told, endpoint, timeout_us)
        try:
            yield Stage(self, provider, endpoint, line)
        finally:
            await provider.close()
            await line.close()

    def play(self, simulators: Simulators, law: Callable[[Stage], Coroutine[Any, Any, None]], **options: Any) -> None:
        """Run a law on a stage of its own."""

        async def run() -> None:
            async with self.stage(simulators, **options) as stage:
                await law(stage)

        asyncio.run(run())


class ApnsRig(Rig):
    """APNs, over one of the clients."""

    platform = "apns"
    own_ids = True
    rejected = Reply(400, "BadDeviceToken")
    dead = Reply(410, "Unregistered")
    busy = Reply(429, "TooManyRequests")
    fault = Reply(403, "InvalidProviderToken")

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("apns", f"{number:064x}")

    def provider(self, told: Mapping[str, str], endpoint: str, timeout_us: int) -> Provider:
        return self.client()(
            team_id=told["team_id"],
            key_id=told["key_id"],
            key=Path(told["key_file"]).read_text(),
            topic=told["topic"],
            endpoint=endpoint,
            ca_file=Path(told["ca_file"]),
            timeout_us=timeout_us,
        )

    @abstractmethod
    def client(self) -> Callable[..., Provider]:
        """The provider's class."""

    def secrets(self, told: Mapping[str, str]) -> list[str]:
        return [*Path(told["key_file"]).read_text().splitlines()[1:-1], "eyJ"]


class ApnsH2(ApnsRig):
    """APNs over our own client."""

    name = "apns-h2"

    def client(self) -> Callable[..., Provider]:
        from notifier.providers.apns.provider import ApnsProvider  # noqa: PLC0415 - not importable where apns2 is

        return ApnsProvider


class ApnsApns2(ApnsRig):
    """APNs over apns2."""

    name = "apns-apns2"

    def client(self) -> Callable[..., Provider]:
        from notifier.providers.apns.pyapns2.provider import Apns2Provider  # noqa: PLC0415 - as in ApnsH2

        return Apns2Provider


class Fcm(Rig):
    """FCM over HTTP v1."""

    name = platform = "fcm"
    rejected = Reply(400, "INVALID_ARGUMENT")
    dead = Reply(404, "UNREGISTERED")
    busy = Reply(429, "QUOTA_EXCEEDED")
    fault = Reply(403, "PERMISSION_DENIED")

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("fcm", f"fcm-registration-{number:08d}")

    def provider(self, told: Mapping[str, str], endpoint: str, timeout_us: int) -> Provider:
        from notifier.providers.fcm.provider import FcmProvider  # noqa: PLC0415 - as in ApnsH2

        account = json.loads(Path(told["service_account"]).read_text())
        return FcmProvider(
            service_account=account, endpoint=endpoint, ca_file=Path(told["ca_file"]), timeout_us=timeout_us
        )

    def secrets(self, told: Mapping[str, str]) -> list[str]:
        account = json.loads(Path(told["service_account"]).read_text())
        return [*account["private_key"].splitlines()[1:-1], "ya29."]


class WebPush(Rig):
    """Browsers, whose push service is the simulator."""

    name = platform = "webpush"
    gone = frozenset({404, 410})
    rejected = Reply(400, "BadUrgency")
    dead = Reply(410, "Unregistered")
    busy = Reply(429, "TooManyRequests")
    # After it has taken our key, a service refuses this subscription alone: webpush/test_provider.py has the rest.
    fault = Reply(405, "MethodNotAllowed")

    def device(self, number: int, endpoint: str) -> Device:
        return Device("webpush", subscription(endpoint, f"browser-{number}"))

    def scripted_as(self, device: Device) -> str:
        return read_subscription(device.token).endpoint.rpartition("/")[2]

    def provider(self, told: Mapping[str, str], endpoint: str, timeout_us: int) -> Provider:
        from notifier.providers.webpush.provider import WebPushProvider  # noqa: PLC0415 - an extra

        return WebPushProvider(
            key=Path(told["key_file"]).read_text(),
            subject=told["subject"],
            hosts=[endpoint.removeprefix("https://")],
            ca_file=Path(told["ca_file"]),
            timeout_us=timeout_us,
        )

    def secrets(self, told: Mapping[str, str]) -> list[str]:
        return [*Path(told["key_file"]).read_text().splitlines()[1:-1], "eyJ", "/push/"]


class Console(Rig):
    """The console in Apple's place. It has no server: what it prints has arrived, and of a body only its length."""

    name = "console"
    platform = "apns"
    networked = False

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("apns", f"{number:08x}" * 8)

    def provider(self, told: Mapping[str, str], endpoint: str, timeout_us: int) -> Provider:
        raise NotImplementedError

    def secrets(self, told: Mapping[str, str]) -> list[str]:  # noqa: ARG002
        return []

    def read_printed(self, text: str) -> list[Arrival]:
        found = re.findall(r"^push (\w+) user=\S+ category=\S+ token=(\S+) title='(.*)' \(", text, re.MULTILINE)
        return [Arrival(0, platform, token, 200, "", "", title=title) for platform, token, title in found]

    @contextlib.asynccontextmanager
    async def stage(self, simulators: Simulators, **_: Any) -> AsyncIterator[Stage]:  # noqa: ARG002
        printed = io.StringIO()
        provider = ConsoleProvider("apns", stream=printed)
        try:
            yield Stage(self, provider, "", None, printed)
        finally:
            await provider.close()


# Which client of Apple's can be had is decided by the h2 that is installed: no environment has both.
APNS: Final = ApnsH2() if int(version("h2").partition(".")[0]) >= LEAST_H2 else ApnsApns2()
RIGS: Final[Sequence[Rig]] = (APNS, Fcm(), WebPush(), Console())
NETWORKED: Final = tuple(rig for rig in RIGS if rig.networked)
