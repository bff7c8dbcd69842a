"""Web Push to browsers (RFC 8030): `crypto` encrypts and signs, pooled aiohttp sends to the server of each vendor."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Device
from notifier.notification.subscription import Subscription, read_subscription
from notifier.providers.answers import unsendable
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.transport.backoff import SECOND_US
from notifier.providers.transport.pooled import PooledProvider
from notifier.providers.webpush import answers as webpush_answers
from notifier.providers.webpush.crypto import Vapid, encrypt
from notifier.providers.webpush.payload import PAYLOAD_BYTES, headers, payload
from notifier.providers.webpush.settings import WebPushSettings

CONTENT: Final = {"Content-Encoding": "aes128gcm", "Content-Type": "application/octet-stream"}

OUR_OWN: Final = frozenset({"Closed", "TooLate"})  # the reasons of this worker itself not to send
STRANGER_US: Final = 60 * SECOND_US


class WebPushProvider(PooledProvider):
    """Sends to browsers over kept connections; neither sleeps nor retries, and follows no redirect.

    settings: of one app. key: the VAPID private key, as `load_key` takes it. max_connections: open at once to one
    server. Raises SettingsError, which never shows the key, if a setting cannot be used.
    """

    platform: str = "webpush"

    def __init__(self, settings: WebPushSettings, key: str, *, max_connections: int = 50) -> None:
        self._vapid = Vapid(key=key, subject=settings.subject)
        self.key_digest = self._vapid.key_digest
        super().__init__(settings, max_connections=max_connections)
        self._hosts = settings.hosts

    async def _send(self, dispatch: Dispatch) -> Answer:
        try:
            subscription = read_subscription(dispatch.device.token)
        except ValueError:
            return Answer(Outcome.REJECTED, reason="BadSubscription")
        try:
            plaintext = payload(dispatch.notification)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
        if not subscription.is_at(self._hosts):
            return Answer(Outcome.REJECTED, reason="HostNotAllowed")
        if len(plaintext) > PAYLOAD_BYTES:
            return Answer(Outcome.REJECTED, reason="PayloadTooLarge")
        # Checked before the encryption, which would be in vain while the server is down.
        unsent = self._pool.unsent(subscription.origin, dispatch.send_by)
        answer = unsent or await self._post(subscription, plaintext, dispatch)
        if answer.outcome is Outcome.UNSENT and answer.reason not in OUR_OWN and not self._exists(subscription):
            return replace(answer, outcome=Outcome.RETRY, retry_after_us=STRANGER_US)
        return answer

    def service(self, device: Device) -> str:
        """The push service of a browser; '' for a token to which nothing is ever sent."""
        try:
            subscription = read_subscription(device.token)
        except ValueError:
            return ""
        return subscription.origin if subscription.is_at(self._hosts) else ""

    def _exists(self, subscription: Subscription) -> bool:
        # Under `*.example.com` a stranger can name a server that never existed. A server that the settings name in
        # full, or that has ever answered, is only down for now: messages wait. To another, each try spends an attempt.
        return subscription.host in self._hosts or self._pool.has_reached(subscription.origin)

    async def _post(self, subscription: Subscription, plaintext: bytes, dispatch: Dispatch) -> Answer:
        authorization = self._vapid.authorization(subscription.origin)
        response = await self._pool.post(
            subscription.endpoint,
            encrypt(subscription, plaintext),
            {**CONTENT, **headers(dispatch.notification, dispatch.ttl_us), "Authorization": authorization.header},
            origin=subscription.origin,
            send_by=dispatch.send_by,
        )
        if isinstance(response, Answer):
            return response
        answer = webpush_answers.read(response.status, response.headers, response.body)
        if answer.outcome is Outcome.DELIVERED:
            authorization.taken()
        elif webpush_answers.is_about_credentials(answer):
            outcome = authorization.refused(subscription.endpoint)
            wait_us = None if outcome is Outcome.REJECTED else answer.retry_after_us
            answer = replace(answer, outcome=outcome, retry_after_us=wait_us)
        return answer
