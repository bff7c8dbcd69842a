"""What the tests of APNs share: a simulator that remembers, a provider against it, and both on one handle."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notifier.notification import Device, Notification
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.token_store import TokenStore
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import Certificates, make_apns_key, make_certificates
from tests.contract.wire_log import Log
from tests.harness.sections import section

TEAM, KEY_ID, TOPIC = "TEAM123456", "KEY1234567", "com.example.app"
TOKEN = "ab" * 32
MINUTE_US = 60_000_000


class Spy(ApnsSimulator):
    """A simulator that keeps the headers and bodies it saw."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    def receive(self, headers, body):
        self.seen.append(dict(headers))
        self.bodies.append(body)
        return super().receive(headers, body)


@dataclass
class Identity:
    certificates: Certificates
    key: str = field(repr=False)
    public: str


@dataclass
class Rig:
    provider: ApnsProvider
    simulator: Spy
    log: Log
    sent: int = field(default=0)

    async def send(self, token: str = TOKEN, **options: Any) -> Answer:
        self.sent += 1
        return await self.provider.send(dispatch(token, **{"job_id": f"job-{self.sent}", **options}))

    async def insist(self, **options: Any) -> Answer:
        """Send as a worker does: what was not sent, again once the provider's time is over."""
        answer = await self.send(**options)
        if answer.outcome is not Outcome.UNSENT:
            return answer
        assert answer.retry_after_us
        await asyncio.sleep(answer.retry_after_us / 1_000_000)
        return await self.send(**options)


def dispatch(
    token: str = TOKEN,
    *,
    job_id: str = "job-1",
    ttl_us: int | None = None,
    within_s: float = 10.0,
    **fields: Any,
) -> Dispatch:
    content = fields or {"title": "Hello"}
    notification = Notification(user="u", devices=[Device("apns", token)], **content)
    send_by = asyncio.get_running_loop().time() + within_s
    return Dispatch(job_id, notification.devices[0], notification, ttl_us, send_by)


def make_identity(folder: Path) -> Identity:
    key_file, public = make_apns_key(folder)
    return Identity(make_certificates(folder), key_file.read_text(), public)


def make_provider(
    identity: Identity, endpoint: str, *, key: str | None = None, tokens: TokenStore | None = None, **options: Any
) -> ApnsProvider:
    given = {"team_id": TEAM, "key_id": KEY_ID, "topic": TOPIC, "ca_file": identity.certificates.ca_file, **options}
    settings = section("apns", endpoint=endpoint, **{name: value for name, value in given.items() if value})
    key = identity.key if key is None else key
    return ApnsProvider(settings, key_id=settings.key_id, key=key, tokens=tokens)


@contextlib.asynccontextmanager
async def rig(identity: Identity, *, client: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Rig]:
    log = Log()
    simulator = Spy(
        certificates=identity.certificates,
        log=log,
        topics={TOPIC},
        team_keys={KEY_ID: (TEAM, identity.public)},
        **options,
    )
    await simulator.start()
    provider = make_provider(identity, simulator.url, **(client or {}))
    try:
        yield Rig(provider, simulator, log)
    finally:
        await provider.close()
        await simulator.close()
