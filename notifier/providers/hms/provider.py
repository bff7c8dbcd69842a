"""HMS Push over Huawei's REST API, v1 by app id or v2 by project id; pooled aiohttp sends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from notifier.errors import InvalidNotificationError
from notifier.providers.answers import unsendable
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.hms import answers as hms_answers
from notifier.providers.hms.payload import PAYLOAD_BYTES, payload
from notifier.providers.transport.backoff import SECOND_US
from notifier.providers.transport.oauth import AccessTokens
from notifier.providers.transport.pooled import PooledProvider

TOKEN_PATH: Final = "/oauth2/v3/token"  # noqa: S105 - its path


class HmsProvider(PooledProvider):
    """Sends to Huawei over kept connections; neither sleeps nor retries.

    app_id, secret: of AppGallery Connect, by which access tokens are fetched. project_id: sends by v2 where it is
    given. endpoint, token_endpoint: scheme, host and port. ca_file: trust these authorities and no others. timeout_us:
    for a connection, for an answer, and for the token endpoint, each. Raises SettingsError where the CA file cannot be
    used.
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
    ) -> None:
        super().__init__(endpoint, ca_file, timeout_us, max_connections=100)
        whose = f"v2/{project_id}" if project_id else f"v1/{app_id}"
        self._url = f"{self._origin}/{whose}/messages:send"
        form = {"grant_type": "client_credentials", "client_id": app_id, "client_secret": secret}
        request = partial(str.encode, urlencode(form))
        token_uri = f"{token_endpoint.rstrip('/')}{TOKEN_PATH}"
        self._tokens = AccessTokens("hms", token_uri, request, self._pool, self._timeout_s)
        self._has_delivered = False

    async def _send(self, dispatch: Dispatch) -> Answer:
        device_token = dispatch.device.token
        try:
            body = payload(dispatch.notification, device_token, dispatch.ttl_us)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
        if len(body) - len(device_token) > PAYLOAD_BYTES:
            return Answer(Outcome.REJECTED, reason="PayloadTooLarge")
        answer = await self._tokens.post(
            self._url,
            body,
            hms_answers.read,
            origin=self._origin,
            send_by=dispatch.send_by,
            content_type="application/json;charset=utf-8",
        )
        if answer.outcome is Outcome.DELIVERED:
            self._has_delivered = True
        elif answer.outcome is Outcome.DEAD_TOKEN and not self._has_delivered:
            # Huawei says the same of every token where the app id is another's: nobody's device is to be forgotten.
            return replace(answer, outcome=Outcome.REJECTED)
        return answer

    async def close(self) -> None:
        """Close the connections; sends still under way answer UNKNOWN, or UNSENT if they had not begun."""
        self._tokens.close()
        await super().close()
