"""Our platforms, each with its simulator, as the provider contract has them."""

import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from notifier.notification import Device
from notifier.notification.subscription import read_subscription
from notifier.providers.apns.provider import LEAST_H2
from notifier.providers.console import ConsoleProvider
from notifier.providers.contract import Outcome
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import Certificates, make_apns_key, make_webpush_key
from notifier.simulators.fcm import FcmSimulator, make_service_account
from notifier.simulators.provider_contract import ProviderContract
from notifier.simulators.provider_contract.sending import SendingContract
from notifier.simulators.provider_contract.stage import Stage
from notifier.simulators.simulator import Simulator
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.webpush_browser import subscription
from notifier.simulators.wire import Arrival, Reply, WireLog

TEAM, KEY_ID, TOPIC = "TEAM123456", "KEY1234567", "com.example.app"
# Which client of Apple's can be had is decided by the h2 that is installed: no environment has both.
CLIENT: Final = "h2" if int(version("h2").partition(".")[0]) >= LEAST_H2 else "apns2"


def lines_of(key: str) -> list[str]:
    """What of a key in PEM must never be seen."""
    return key.splitlines()[1:-1]


class Apns(ProviderContract):
    """APNs, over the client that can be had. certificates: of the latest stage's simulator."""

    platform = "apns"
    own_ids = True
    rejected, dead = Reply(400, "BadDeviceToken"), Reply(410, "Unregistered")
    busy, fault = Reply(429, "TooManyRequests"), Reply(403, "InvalidProviderToken")
    certificates: Certificates
    key_file: Path

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("apns", f"{number:064x}")

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        self.certificates = certificates
        self.key_file, public = make_apns_key(certificates.ca_file.parent, KEY_ID)
        return ApnsSimulator(certificates=certificates, log=log, topics={TOPIC}, team_keys={KEY_ID: (TEAM, public)})

    def section(self, simulator: Simulator) -> dict[str, Any]:  # noqa: ARG002
        sign_in = {"team_id": TEAM, "key_id": KEY_ID, "key_file": str(self.key_file)}
        return {"client": CLIENT, "topic": TOPIC, **sign_in}

    def secrets(self) -> list[str]:
        return [*lines_of(self.key_file.read_text()), "eyJ"]


class Fcm(ProviderContract):
    """FCM over HTTP v1."""

    platform = "fcm"
    rejected, dead = Reply(400, "INVALID_ARGUMENT"), Reply(404, "UNREGISTERED")
    busy, fault = Reply(429, "QUOTA_EXCEEDED"), Reply(403, "PERMISSION_DENIED")

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("fcm", f"fcm-registration-{number:08d}")

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        fcm = FcmSimulator(certificates=certificates, log=log)
        self.account = certificates.ca_file.with_name("account.json")
        self.account.write_text(json.dumps(service_account() | {"token_uri": f"{fcm.url}/token"}))
        fcm.trust(self.account)
        return fcm

    def section(self, simulator: Simulator) -> dict[str, Any]:  # noqa: ARG002
        return {"service_account": str(self.account)}

    def secrets(self) -> list[str]:
        return [*lines_of(service_account()["private_key"]), "ya29."]


@cache
def service_account() -> dict[str, str]:
    """Made once: its key takes a tenth of a second."""
    with TemporaryDirectory() as folder:
        account: dict[str, str] = json.loads(make_service_account(Path(folder), "", "simulated-project").read_text())
    return account


class WebPush(ProviderContract):
    """Browsers, whose push service is the simulator."""

    platform = "webpush"
    gone = frozenset({404, 410})
    rejected, dead = Reply(400, "BadUrgency"), Reply(410, "Unregistered")
    # After it has taken our key, a service refuses this subscription alone: webpush/test_provider.py has the rest.
    busy, fault, fault_means = Reply(429, "TooManyRequests"), Reply(405, "MethodNotAllowed"), Outcome.REJECTED

    def device(self, number: int, endpoint: str) -> Device:
        return Device("webpush", subscription(endpoint, f"browser-{number}"))

    def scripted_as(self, device: Device) -> str:
        return read_subscription(device.token).endpoint.rpartition("/")[2]

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        self.key_file, public_key = make_webpush_key(certificates.ca_file.parent)
        return WebPushSimulator(certificates=certificates, log=log, public_key=public_key)

    def section(self, simulator: Simulator) -> dict[str, Any]:  # noqa: ARG002
        return {"key_file": str(self.key_file), "subject": "mailto:simulator@example.com"}

    def at(self, endpoint: str) -> dict[str, Any]:
        return {"hosts": [endpoint.removeprefix("https://")]}

    def secrets(self) -> list[str]:
        return [*lines_of(self.key_file.read_text()), "eyJ", "/push/"]


class Printed(io.StringIO):
    """What is printed has arrived; of a body only its length is."""

    def __init__(self, log: WireLog) -> None:
        super().__init__()
        self._log = log

    def write(self, text: str) -> int:
        found = re.findall(r"^push (\w+) user=\S+ category=\S+ token=(\S+) title='(.*)' \(", text, re.MULTILINE)
        for platform, token, title in found:
            self._log.record(Arrival(0, platform, token, 200, "", "", title=title))
        return super().write(text)


class PrintedStage(Stage):
    """A stage without a server: the console masks the tokens, so that all of it counts as this test's."""

    async def arrivals(self, device: Device | None = None) -> list[Arrival]:  # noqa: ARG002
        return self.log.arrivals


class Console(SendingContract):
    """The console in Apple's place. It has no server."""

    platform = "apns"
    networked = False

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("apns", f"{number:08x}" * 8)

    @contextlib.asynccontextmanager
    async def stage(self, **_: Any) -> AsyncIterator[Stage]:
        log = WireLog()
        provider = ConsoleProvider("apns", stream=Printed(log))
        try:
            yield PrintedStage(self, provider, log)
        finally:
            await provider.close()


APNS: Final = Apns()
NETWORKED: Final[Sequence[ProviderContract]] = (APNS, Fcm(), WebPush())
