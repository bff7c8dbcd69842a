"""Apple's push service through apns2 and hyper, for those who depend on them: `providers.apns.client: apns2`.

Payloads, headers, tokens and answers are those of the default client; what apns2 and hyper do is the way to Apple:
building each request, and HTTP/2. docs/how-to/apns2.md says what that costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.pyapns2.channel import Channel

if TYPE_CHECKING:
    import ssl


class Apns2Provider(ApnsProvider):
    """As `ApnsProvider`, with the same settings; has a thread of its own from the first send to `close`."""

    sends_to_channels = False

    def _open_channel(self, *, host: str, port: int, tls: ssl.SSLContext, timeout_s: float) -> Channel:
        return Channel(host=host, port=port, tls=tls, timeout_s=timeout_s)
