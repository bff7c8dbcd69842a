"""HMS Push over Huawei's REST API, v1 by app id or v2 by project id; pooled aiohttp sends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import urlencode

from notifier.errors import InvalidNotificationError
from notifier.providers.answers import unsendable
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.hms import answers as hms_answers
from notifier.providers.hms.payload import payload
from notifier.providers.hms.settings import HmsSettings
from notifier.providers.transport.oauth import AccessTokens
from notifier.providers.transport.pooled import PooledProvider

TOKEN_PATH: Final = "/oauth2/v3/token"  # noqa: S105 - its path


class HmsProvider(PooledProvider):
    """Sends to Huawei over kept connections; neither sleeps nor retries.

    settings: of one app. secret: of AppGallery Connect, to fetch access tokens. Raises SettingsError if the CA file
    cannot be used.
    """

    platform: str = "hms"

    def __init__(self, settings: HmsSettings, secret: str) -> None:
        super().__init__(settings, max_connections=100)
        whose = f"v2/{settings.project_id}" if settings.project_id else f"v1/{settings.app_id}"
        self._url = f"{self._origin}/{whose}/messages:send"
        form = {"grant_type": "client_credentials", "client_id": settings.app_id, "client_secret": secret}
        request = partial(str.encode, urlencode(form))
        token_uri = f"{settings.token_endpoint}{TOKEN_PATH}"
        self._tokens = AccessTokens("hms", token_uri, request, self._pool, self._timeout_s)
        self._has_delivered = False

    async def _send(self, dispatch: Dispatch) -> Answer:
        try:
            body = payload(dispatch.notification, dispatch.device.token, dispatch.ttl_us)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
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
            # With an app id of another app, Huawei says this of every token. Then no device must be forgotten.
            return replace(answer, outcome=Outcome.REJECTED)
        return answer
