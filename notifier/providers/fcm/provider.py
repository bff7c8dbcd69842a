"""FCM over HTTP v1: pyfcm builds the messages, google-auth signs for the access token, pooled aiohttp sends."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyfcm import FCMNotification

from notifier.errors import InvalidNotificationError
from notifier.providers.answers import unsendable
from notifier.providers.contract import Answer, Dispatch
from notifier.providers.fcm import answers as fcm_answers
from notifier.providers.fcm.payload import PAYLOAD_BYTES, message_arguments, payload_size, to_json
from notifier.providers.fcm.settings import FcmSettings
from notifier.providers.fcm.tokens import assertion, read_account
from notifier.providers.transport.oauth import AccessTokens
from notifier.providers.transport.pooled import PooledProvider


class FcmProvider(PooledProvider):
    """Sends to FCM over kept connections; neither sleeps nor retries.

    settings: of one app. account: the parsed JSON file of a Google service account. max_connections: open at once;
    sends beyond them wait. Raises SettingsError, which never shows the key, for an account or a CA file that cannot be
    used.
    """

    platform: str = "fcm"

    def __init__(self, settings: FcmSettings, account: Mapping[str, Any], *, max_connections: int = 100) -> None:
        credentials = read_account(account)
        super().__init__(settings, max_connections=max_connections)
        self._messages = _Messages(credentials, account["project_id"], settings)
        self._url: str = self._messages.fcm_end_point
        token_uri, request = account["token_uri"], partial(assertion, credentials)
        self._tokens = AccessTokens("fcm", token_uri, request, self._pool, self._timeout_s)

    async def _send(self, dispatch: Dispatch) -> Answer:
        try:
            body = self._messages.build(dispatch)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
        return await self._tokens.post(self._url, body, fcm_answers.read, origin=self._origin, send_by=dispatch.send_by)


class _Messages(FCMNotification):
    """pyfcm, only for the form of a message and its address: its own sends sleep and retry."""

    def __init__(self, credentials: Any, project_id: str, settings: FcmSettings) -> None:
        super().__init__(credentials=credentials, project_id=project_id)
        self.FCM_END_POINT_BASE = f"{settings.endpoint}/v1/projects"
        self._dry_run = settings.dry_run

    def build(self, dispatch: Dispatch) -> bytes:
        """Build the request's body; raises InvalidNotificationError if FCM cannot carry it."""
        arguments = message_arguments(dispatch.notification, dispatch.ttl_us)
        body: bytes = self.parse_payload(  # type: ignore[no-untyped-call]
            fcm_token=dispatch.device.token, dry_run=self._dry_run, **arguments
        )
        # The limit is for a part of the body: a short body needs no count.
        if len(body) > PAYLOAD_BYTES and (size := payload_size(dispatch.notification)) > PAYLOAD_BYTES:
            raise InvalidNotificationError("body", f"{size} bytes on the wire; at most {PAYLOAD_BYTES} are allowed")
        return body

    def json_dumps(self, data: Any) -> bytes:
        """Write as pyfcm does, without making an encoder for each message."""
        return to_json(data).encode()
