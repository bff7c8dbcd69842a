"""HMS Push and Expo, through the protocol of any package's platform: the contract, and what is their own."""

from __future__ import annotations

from typing import Any

from notifier.notification import Device
from notifier.providers.contract import Outcome
from notifier.simulators.certificates import Certificates
from notifier.simulators.expo import OF_A_TICKET, ExpoSimulator
from notifier.simulators.hms import HmsSimulator
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import Reply, WireLog
from notifier.testing.provider_contract import ProviderContract

SECRET = "0123456789abcdef-the-app-secret"
ACCESS = "the-access-token-of-expo"


class TestHms(ProviderContract):
    platform = "hms"
    needs = {"body": "…"}
    rejected, dead, fault = Reply(400, "80100003"), Reply(400, "80300007"), Reply(400, "80300002")
    busy, busy_means = Reply(503, ""), Outcome.FULL
    environ = {"NOTIFIER_HMS_SECRET": SECRET}

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("hms", f"IQAAAACy0{number:040d}")

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        return HmsSimulator(
            certificates=certificates, log=log, apps={"104200001": SECRET}, projects={"77": "104200001"}
        )

    def section(self, simulator: Simulator) -> dict[str, Any]:
        return {"app_id": "104200001", "token_endpoint": simulator.url}

    def secrets(self) -> list[str]:
        return [SECRET, "CgB6"]


class TestHmsV2(TestHms):
    """By project id; the access token is still the app's."""

    def section(self, simulator: Simulator) -> dict[str, Any]:
        return super().section(simulator) | {"project_id": "77"}


class TestExpo(ProviderContract):
    platform = "expo"
    collapses = False
    rejected, dead, fault = Reply(400, "MessageTooBig"), Reply(400, "DeviceNotRegistered"), Reply(401, "UNAUTHORIZED")
    busy, busy_means = Reply(429, "TOO_MANY_REQUESTS"), Outcome.FULL
    environ = {"NOTIFIER_EXPO_TOKEN": ACCESS}

    def device(self, number: int, endpoint: str) -> Device:  # noqa: ARG002
        return Device("expo", f"ExponentPushToken[{number:022d}]")

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        return ExpoSimulator(certificates=certificates, log=log, access_token=ACCESS)

    def section(self, simulator: Simulator) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def secrets(self) -> list[str]:
        return [ACCESS]

    def status_of(self, reply: Reply) -> int:
        return 200 if reply.reason in OF_A_TICKET else reply.status
