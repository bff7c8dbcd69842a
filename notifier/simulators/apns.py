"""A simulator of APNs: HTTP/2 over TLS, as strict as Apple's servers. It logs each message as it arrives."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notifier.simulators.apns_channels import BROADCASTS, Channels
from notifier.simulators.checks.apns import Checks, Verdict
from notifier.simulators.http2 import Http2Simulator
from notifier.simulators.orders import ApnsOrders
from notifier.simulators.wire import Reply


@dataclass(kw_only=True, eq=False, repr=False)
class ApnsSimulator(Http2Simulator):
    """One APNs-like server; see `Http2Simulator` for its connections.

    team_keys: key id to (team id, public key as PEM). token_update_s: the least time between two new provider
    tokens of a key, a rule of Apple's; 0 is none. clock: seconds since 1970, for the checks of provider tokens alone.
    client_ca_file: every client must show a certificate that this authority signed, and needs no provider token.
    """

    platform = "apns"
    orders = ApnsOrders
    names_refused = True

    topics: set[str]
    team_keys: Mapping[str, tuple[str, str]]
    clock: Callable[[], float] = time.time
    token_update_s: float = 0
    client_ca_file: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checks = Checks(
            topics=self.topics,
            team_keys=self.team_keys,
            clock=self.clock,
            token_update_s=lambda: self.token_update_s,
            by_certificate=self.client_ca_file is not None,
        )
        self.channels = Channels(self.checks)
        if self.client_ca_file is not None:
            self.by_certificate = True
            self._tls.verify_mode = ssl.CERT_REQUIRED
            self._tls.load_verify_locations(self.client_ca_file)

    def expire_tokens(self) -> None:
        self.checks.expire_tokens()

    def receive(self, headers: Mapping[str, str], body: bytes) -> tuple[Reply, Verdict]:
        at_us = time.time_ns() // 1000
        is_broadcast = headers.get(":path", "").startswith(BROADCASTS)
        judge = self.channels.broadcast if is_broadcast else self.checks.judge
        verdict = judge(headers, body, at_us)
        reply = self.reply_to(verdict)
        self.record(at_us, verdict, reply)
        return reply, verdict


class ApnsChannelsSimulator(ApnsSimulator):
    """The host on which the broadcast channels of an ApnsSimulator are made, read and deleted."""

    def __init__(self, of: ApnsSimulator, **options: Any) -> None:
        super().__init__(topics=set(), team_keys={}, **options)
        self.channels = of.channels

    def receive(self, headers: Mapping[str, str], body: bytes) -> tuple[Reply, Verdict]:
        """Answer one complete request. It is no message, so it is not logged."""
        verdict = self.channels.manage(headers, body)
        return verdict.reply, verdict
