"""What every provider promises: the suite that a package's platform runs too, over ours and real sockets.

Each is built by hand, against simulators in a process of their own: one of the providers cannot live in an environment
in which its server can.
"""

from __future__ import annotations

from typing import Any

import pytest

from notifier.notification import Device
from notifier.providers.contract import Outcome
from notifier.simulators.provider_contract.network import NetworkContract
from notifier.simulators.provider_contract.sending import SendingContract
from notifier.simulators.provider_contract.stage import ANSWER_US
from notifier.simulators.wire import Arrival
from tests.contract.rigs import APNS, Console, Fcm, Rig, Simulators, WebPush


class OnRig(SendingContract):
    """The contract, played on a rig."""

    rig: Rig

    @pytest.fixture(autouse=True)
    def _simulators(self, simulators: Simulators) -> None:
        self.simulators = simulators

    def device(self, number: int, endpoint: str) -> Device:
        return self.rig.device(number, endpoint)

    def scripted_as(self, device: Device) -> str:
        return self.rig.scripted_as(device)

    def read_printed(self, text: str) -> list[Arrival]:
        return self.rig.read_printed(text)

    def secrets(self) -> list[str]:
        return self.rig.secrets(self.simulators.told[self.platform])

    def stage(self, *, timeout_us: int = ANSWER_US, **options: Any) -> Any:
        # The simulators are a process of their own: while it stands still, the clock of the test's loop goes on.
        return self.rig.stage(self.simulators, timeout_us=min(3 * timeout_us, ANSWER_US), **options)


class OverNetwork(OnRig, NetworkContract):
    """The contract of networks, played on a rig; what its server answers is the rig's to say."""

    def __init_subclass__(cls) -> None:
        for name in ("platform", "own_ids", "gone", "rejected", "dead", "busy", "fault"):
            setattr(cls, name, getattr(cls.rig, name))


class TestConsole(OnRig):
    rig = Console()
    platform = "apns"
    networked = False


class TestApns(OverNetwork):
    rig = APNS


class TestFcm(OverNetwork):
    rig = Fcm()


class TestWebPush(OverNetwork):
    rig = WebPush()
    fault_means = Outcome.REJECTED
    # What a service says of the sender may be one subscription's fault: webpush/test_provider.py has that.
    test_credentials_that_end_early = None
