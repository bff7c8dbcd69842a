"""Apple's push service through apns2, for users who depend on it: `providers.apns.client: apns2`.

apns2 builds each request. Payloads, tokens, answers and the connection to Apple are those of the default client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.pyapns2.push import Pusher
from notifier.providers.transport.http2 import channel as http2_channel

if TYPE_CHECKING:
    import ssl

    from hpack import HeaderTuple

    from notifier.providers.transport.http2.requests import Result


class Channel(http2_channel.Channel):
    """The default client's connection, for requests that apns2 builds."""

    def __init__(self, *, host: str, port: int, tls: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(host=host, port=port, tls=tls, timeout_s=timeout_s)
        self._pusher = Pusher()

    async def request(self, headers: list[HeaderTuple], body: bytes, *, send_by: float) -> Result:
        """See the default client's. apns2 knows no request to a broadcast channel: it goes unchanged."""
        if dict(headers)[b":path"].startswith(b"/3/device/"):
            headers, body = self._pusher.build(headers, body)
        return await super().request(headers, body, send_by=send_by)


class Apns2Provider(ApnsProvider):
    """As `ApnsProvider`, with the same settings."""

    def _open_channel(self, *, host: str, port: int, tls: ssl.SSLContext, timeout_s: float) -> Channel:
        return Channel(host=host, port=port, tls=tls, timeout_s=timeout_s)
