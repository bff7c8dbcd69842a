"""Expo's push service: pooled aiohttp sends, many messages in a request; tickets are the answers, receipts follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification.json_values import fields_of
from notifier.providers.answers import unsendable
from notifier.providers.build import Late
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.expo import answers as expo_answers
from notifier.providers.expo.batches import MAX_REQUESTS, OK, Batches, Replied, Waiting
from notifier.providers.expo.payload import PAYLOAD_BYTES, message
from notifier.providers.expo.receipts import Receipts
from notifier.providers.expo.settings import ExpoSettings
from notifier.providers.transport.backoff import SECOND_US
from notifier.providers.transport.http1 import Response
from notifier.providers.transport.pooled import PooledProvider

SEND_PATH: Final = "/--/api/v2/push/send"
RECEIPTS_PATH: Final = "/--/api/v2/push/getReceipts"
MAX_ANSWER_BYTES: Final = 1_000_000  # a hundred tickets with their messages, or a thousand receipts


class ExpoProvider(PooledProvider):
    """Sends to Expo over kept connections; neither sleeps nor retries.

    settings: of one app. access_token: of Expo's dashboard; '' if the project takes messages from anybody. report:
    called with each dead token that a receipt names. Raises SettingsError if the CA file cannot be used.
    """

    platform: str = "expo"

    def __init__(self, settings: ExpoSettings, access_token: str, report: Callable[[Late], None]) -> None:
        # The last of the connections is for receipts.
        super().__init__(settings, max_connections=MAX_REQUESTS + 1, max_bytes=MAX_ANSWER_BYTES)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if access_token:
            headers["Authorization"] = f"Bearer {access_token}"
        self._headers: Callable[[], dict[str, str]] = lambda: headers  # a lambda, so that no repr shows the secret
        self._batches = Batches(self._post)
        after_s = settings.receipts_after_us / SECOND_US  # 0 is never
        self._receipts = Receipts(self._fetch, after_s, report) if after_s else None

    async def _send(self, dispatch: Dispatch) -> Answer:
        token = dispatch.device.token
        try:
            content = message(dispatch.notification, token, dispatch.ttl_us)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
        if len(content) - len(token) > PAYLOAD_BYTES:  # Expo would refuse the others of its request as well
            return Answer(Outcome.REJECTED, reason="MessageTooBig")
        answer, ticket = await self._batches.send(content, dispatch.send_by)
        if ticket and self._receipts is not None:
            self._receipts.expect(ticket, dispatch.device, dispatch.notification.user, dispatch.job_id)
        return answer

    async def close(self) -> None:
        if self._receipts is not None:
            self._receipts.close()
        await super().close()

    async def _post(self, batch: Sequence[Waiting]) -> Sequence[Replied]:
        body = b"[" + b",".join(waiting.message for waiting in batch) + b"]"
        send_by = min(waiting.send_by for waiting in batch)
        response = await self._request(SEND_PATH, body, send_by)
        if isinstance(response, Answer):
            return [(response, "")] * len(batch)
        tickets = expo_answers.read_tickets(response.body, len(batch)) if response.status == OK else []
        if not tickets:
            refusal = expo_answers.read_request(response.status, response.headers, response.body)
            return [(refusal, "")] * len(batch)
        return [expo_answers.read_ticket(ticket) for ticket in tickets]

    async def _fetch(self, body: bytes) -> Mapping[str, Any] | None:
        response = await self._request(RECEIPTS_PATH, body, asyncio.get_running_loop().time() + self._timeout_s)
        if isinstance(response, Answer) or response.status != OK:
            return None
        data = fields_of(response.body).get("data")
        return data if isinstance(data, dict) else None

    async def _request(self, path: str, body: bytes, send_by: float) -> Response | Answer:
        return await self._pool.post(
            f"{self._origin}{path}", body, self._headers(), origin=self._origin, send_by=send_by
        )
