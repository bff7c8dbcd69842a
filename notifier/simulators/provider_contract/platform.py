"""The promises of a platform that a package brings: its protocol and its provider."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

import pytest

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device, Notification
from notifier.notification.job import encode_targets
from notifier.notification.platforms import PROTOCOL, find
from notifier.providers import check_payload
from notifier.providers.build import Build
from notifier.providers.contract import Provider
from notifier.settings import parse_settings
from notifier.simulators.certificates import Certificates, make_certificates
from notifier.simulators.control import Control
from notifier.simulators.provider_contract.network import NetworkContract
from notifier.simulators.provider_contract.stage import ANSWER_US, Stage, numbers
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import WireLog

TARGET: Final = re.compile(r"- \w+:[ncb](@\S+)?\|\S+")


class ProviderContract(NetworkContract):
    """The promises of a platform, its protocol and its provider; its simulator runs in the process of the tests.

    wrong_tokens: texts that are no token of this platform. environ: the variables that its section reads secrets from.
    max_bytes: a longer body fits into no message; None if the platform has no such limit.
    """

    wrong_tokens: ClassVar[Sequence[str]] = ("", " ", "not a token\n", "\ud800")
    environ: ClassVar[dict[str, str]] = {}
    max_bytes: ClassVar[int | None] = 5000

    def simulator(self, certificates: Certificates, log: WireLog) -> Simulator:
        """Make a simulator, not yet started."""
        raise NotImplementedError

    def section(self, simulator: Simulator) -> dict[str, Any]:
        """Return the section `providers.<platform>` that sends to this simulator, without `endpoint` and `ca_file`.

        The contract adds these two and `timeout`.
        """
        raise NotImplementedError

    def at(self, endpoint: str) -> dict[str, Any]:
        """Return the part of that section that names the server."""
        return {"endpoint": endpoint}

    @contextlib.asynccontextmanager
    async def stage(self, *, timeout_us: int = ANSWER_US, endpoint: str | None = None) -> AsyncIterator[Stage]:
        """A stage with a new provider and a new simulator. endpoint: in place of the simulator's."""
        with TemporaryDirectory() as name:
            folder, log = Path(name), WireLog()
            certificates = make_certificates(folder)
            simulator = self.simulator(certificates, log)
            control = Control(folder / "control", log, [simulator])
            where = endpoint or simulator.url
            provider = self._provider(simulator, where, certificates.ca_file, timeout_us)
            try:
                await simulator.start()
                yield Stage(self, provider, log, where, control)
            finally:
                await provider.close()
                await simulator.close()

    def _provider(self, simulator: Simulator, endpoint: str, ca_file: Path, timeout_us: int) -> Provider:
        section = self.section(simulator) | self.at(endpoint)
        section |= {"ca_file": str(ca_file), "timeout": f"{timeout_us // 1000}ms"}
        settings = parse_settings(json.dumps({"providers": {self.platform: section}}))
        platform = find(self.platform)
        assert platform is not None
        provider: Provider = platform.provider(settings.providers.platforms()[self.platform], None, Build(self.environ))
        assert provider.platform == self.platform
        return provider

    # The protocol.

    def test_it_is_installed_under_its_name(self) -> None:
        """The entry point leads to the platform, which is written for this version of the protocol."""
        platform = find(self.platform)
        assert platform is not None
        assert (platform.name, platform.protocol) == (self.platform, PROTOCOL)
        assert platform.settings().platform == self.platform

    def test_a_mistake_in_the_yaml_is_told(self) -> None:
        """An unknown key is refused with its name; a section that only prints needs nothing else."""
        with pytest.raises(SettingsError, match=rf"providers\.{self.platform}\.no_such_key: unknown key"):
            parse_settings(json.dumps({"providers": {self.platform: {"client": "console", "no_such_key": 1}}}))
        printing = parse_settings(json.dumps({"providers": {self.platform: {"client": "console"}}}))
        assert printing.providers.platforms()[self.platform].prints

    def test_a_token_is_checked_before_it_is_enqueued(self) -> None:
        """A device of the platform is accepted. The error for a wrong token names its place, and never shows it."""
        good = self.device(next(numbers), "https://127.0.0.1:1")
        notification = Notification(user="u", devices=[good], title="Hello", **self.needs)
        notification.validate()
        check_payload(notification)
        assert TARGET.fullmatch(encode_targets(notification)), "the scripts can read what kind it is"
        for token in self.wrong_tokens:
            with pytest.raises(InvalidNotificationError, match=r"devices\[0\]\.token: ") as caught:
                Notification(user="u", devices=[Device(self.platform, token)], title="Hello").validate()
            assert not token.strip() or token not in str(caught.value)

    def test_what_is_too_large_is_refused_before_it_is_enqueued(self) -> None:
        """`check_payload` refuses a large message, not the provider hours later, when nobody waits for the answer."""
        if self.max_bytes is None:
            pytest.skip("the platform has no limit")
        device = self.device(next(numbers), "https://127.0.0.1:1")
        with pytest.raises(InvalidNotificationError, match="bytes on the wire"):
            check_payload(Notification(user="u", devices=[device], title="Hello", body="é" * (self.max_bytes // 2 + 1)))
