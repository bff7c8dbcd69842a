"""Apple's server that makes, reads and deletes broadcast channels; it has a host of its own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from notifier.errors import ChannelError, RedisUnusableError, SettingsError
from notifier.notification.json_values import fields_of
from notifier.providers.answers import word
from notifier.providers.apns import tls as apns_tls
from notifier.providers.apns.answers import NO_BROADCAST
from notifier.providers.apns.broadcast import BroadcastChannel
from notifier.providers.apns.settings import ApnsSettings
from notifier.providers.apns.token import ProviderToken
from notifier.providers.apns.token_store import TokenStore
from notifier.providers.contract import Answer
from notifier.providers.transport.http2.channel import Channel
from notifier.providers.transport.http2.headers import literal, repeated
from notifier.providers.transport.http2.requests import Response
from notifier.settings.checks import APPLE_CHANNELS, APPLE_ENDPOINTS

ENDPOINTS: Final = {APPLE_ENDPOINTS[name]: APPLE_CHANNELS[name] for name in APPLE_CHANNELS}
LIST_BYTES: Final = 4_000_000  # of 10,000 channels, whose ids may be of any length
CREATED, FOUND, DELETED = 201, 200, 204
HELP: Final = {
    "FeatureNotEnabled": NO_BROADCAST,
    "CannotCreateChannelConfig": "the app has all the channels that Apple lets it have; delete those that are over",
    "ChannelNotRegistered": "there is no such channel of this app in this environment",
    "TopicMismatch": "the key may not send for this topic",
}


class ChannelServer:
    """The channels of one app; lives in one event loop. Every call may raise ChannelError or RedisUnusableError."""

    def __init__(self, settings: ApnsSettings, app: str | None, environ: Mapping[str, str], tokens: TokenStore) -> None:
        """tokens: the store of the team's provider token. Raises SettingsError."""
        mine = settings.app(app)
        endpoint = mine.channels_endpoint or ENDPOINTS.get(mine.endpoint)
        if settings.client == "console" or endpoint is None:
            why = "is missing: give the address of the server that channels are made on" if endpoint is None else ""
            raise SettingsError(f"providers.apns.channels_endpoint: {why or 'client console has no channels'}")
        if mine.cert_file:
            raise SettingsError("providers.apns.cert_file: channels need a provider token (team_id, key_id, key_file)")
        host, port, authority = apns_tls.split(endpoint)
        self._timeout_s = mine.timeout_us / 1e6
        tls = apns_tls.context(mine)
        self._channel = Channel(host=host, port=port, tls=tls, timeout_s=self._timeout_s, max_response=LIST_BYTES)
        self._same_on_all = (repeated(b":scheme", b"https"), repeated(b":authority", authority))
        self._path = f"/1/apps/{mine.topic}/"
        sign_in = {"key_id": settings.read_key_id(app), "key": settings.read_secret(environ, app)}
        # The store may take the whole timeout: only this call waits for it, and nobody repeats the call.
        self._token = ProviderToken(team_id=mine.team_id, store=tokens, patience_s=self._timeout_s, **sign_in)

    async def create(self, *, stores: bool) -> str:
        wanted = {"message-storage-policy": int(stores), "push-type": "LiveActivity"}
        response = await self._ask(b"POST", "channels", CREATED, body=json.dumps(wanted).encode())
        channel_id = response.headers.get(b"apns-channel-id", b"").decode("latin-1")
        if not channel_id:
            raise ChannelError("NoChannelId", response.status)
        return channel_id

    async def read(self, channel_id: str) -> BroadcastChannel:
        response = await self._ask(b"GET", "channels", FOUND, channel_id)
        stores: Any = fields_of(response.body).get("message-storage-policy")
        if stores not in (0, 1):
            raise ChannelError("NoChannel", response.status)
        return BroadcastChannel(channel_id, stores == 1)

    async def delete(self, channel_id: str) -> None:
        await self._ask(b"DELETE", "channels", DELETED, channel_id)

    async def list(self) -> list[str]:
        response = await self._ask(b"GET", "all-channels", FOUND)
        found: Any = fields_of(response.body).get("channels")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ChannelError("NoChannels", response.status)
        return found

    async def close(self) -> None:
        await self._token.close()
        await self._channel.close()

    async def _ask(
        self, method: bytes, place: str, expected: int, channel_id: str = "", *, body: bytes = b""
    ) -> Response:
        authorization = await self._token.fetch()
        if not authorization:
            raise RedisUnusableError("Redis does not give the team's provider token: it cannot be used")
        headers = [
            literal(b":method", method),
            literal(b":path", f"{self._path}{place}".encode()),
            *self._same_on_all,
            literal(b"apns-request-id", str(uuid.uuid4()).encode()),
            literal(b"authorization", authorization),
        ]
        if channel_id:
            headers.append(literal(b"apns-channel-id", channel_id.encode()))
        send_by = asyncio.get_running_loop().time() + self._timeout_s
        answer = await self._channel.request(headers, body, send_by=send_by)
        if isinstance(answer, Answer):
            raise ChannelError(answer.reason)
        if answer.status != expected:
            reason = word(fields_of(answer.body).get("reason"))
            raise ChannelError(reason or "without a reason", answer.status, HELP.get(reason, ""))
        return answer
