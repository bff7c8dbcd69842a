"""HMS Push over Huawei's REST API, v1 by app id or v2 by project id; pooled aiohttp sends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from notifier.errors import InvalidNotificationError
from notifier.notification import Device
from notifier.providers.answers import unsendable
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.hms import answers as hms_answers
from notifier.providers.hms.payload import PAYLOAD_BYTES, payload
from notifier.providers.transport.backoff import SECOND_US, Turns
from notifier.providers.transport.http1 import Pool, tls_context
from notifier.providers.transport.oauth import AccessTokens
from notifier.providers.transport.probes import http1_lives

TOKEN_PATH: Final = "/oauth2/v3/token"  # noqa: S105 - its path


class HmsProvider:
    """Sends to Huawei over kept connections; neither sleeps nor retries.

    app_id, secret: of AppGallery Connect, by which access tokens are fetched. project_id: sends by v2 where it is
    given. endpoint, token_endpoint: scheme, host and port. ca_file: trust these authorities and no others. timeout_us:
    for a connection, for an answer, and for the token endpoint, each. max_connections: open at once; sends beyond them
    wait. Raises SettingsError where the CA file cannot be used.
    """

    platform: str = "hms"

    def __init__(
        self,
        *,
        app_id: str,
        secret: str,
        project_id: str = "",
        endpoint: str = "https://push-api.cloud.huawei.com",
        token_endpoint: str = "https://oauth-login.cloud.huawei.com",  # noqa: S107 - its address
        ca_file: Path | None = None,
        timeout_us: int = 5 * SECOND_US,
        max_connections: int = 100,
    ) -> None:
        timeout_s = self._timeout_s = timeout_us / SECOND_US
        self._origin = endpoint.rstrip("/")
        whose = f"v2/{project_id}" if project_id else f"v1/{app_id}"
        self._url = f"{self._origin}/{whose}/messages:send"
        tls = tls_context(ca_file, "providers.hms.ca_file")
        self._pool = Pool("hms", tls=tls, timeout_s=timeout_s, max_connections=max_connections)
        form = {"grant_type": "client_credentials", "client_id": app_id, "client_secret": secret}
        request = partial(str.encode, urlencode(form))
        self._tokens = AccessTokens("hms", f"{token_endpoint.rstrip('/')}{TOKEN_PATH}", request, self._pool, timeout_s)
        self._turns = Turns()
        self._has_delivered = False

    async def send(self, dispatch: Dispatch) -> Answer:
        """Send to one device; see `Provider.send`. One device's sends reach Huawei in the order of the calls."""
        async with self._turns.turn(dispatch.device.token, dispatch.send_by) as held:
            return await self._send(dispatch) if held else Answer(Outcome.UNSENT, reason="TooLate")

    async def _send(self, dispatch: Dispatch) -> Answer:
        device_token = dispatch.device.token
        try:
            body = payload(dispatch.notification, device_token, dispatch.ttl_us)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
        if len(body) - len(device_token) > PAYLOAD_BYTES:
            return Answer(Outcome.REJECTED, reason="PayloadTooLarge")
        token = await self._tokens.take(self._origin, dispatch.send_by)
        if isinstance(token, Answer):
            return token
        return await self._post(body, token, dispatch.send_by)

    def service(self, device: Device) -> str:
        """Huawei's server: the same for all devices."""
        del device
        return self._origin

    async def probe(self, device: Device) -> bool:
        """Whether Huawei's server answers at all; see `Provider.probe`."""
        del device
        return await http1_lives(self._origin, self._pool.tls, self._timeout_s)

    async def close(self) -> None:
        """Close the connections; sends still under way answer UNKNOWN, or UNSENT if they had not begun."""
        self._tokens.close()
        await self._pool.close()

    async def _post(self, body: bytes, token: str, send_by: float) -> Answer:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json;charset=utf-8"}
        response = await self._pool.post(self._url, body, headers, origin=self._origin, send_by=send_by)
        if isinstance(response, Answer):
            return response
        answer = hms_answers.read(response.status, response.headers, response.body)
        if answer.outcome is Outcome.UNSENT:
            return self._tokens.refused(token, answer)
        self._tokens.accepted(token)
        if answer.outcome is Outcome.DELIVERED:
            self._has_delivered = True
        elif answer.outcome is Outcome.DEAD_TOKEN and not self._has_delivered:
            # Huawei says the same of every token where the app id is another's: nobody's device is to be forgotten.
            return replace(answer, outcome=Outcome.REJECTED)
        return answer
