"""Web Push as a platform: the part that needs no driver."""

from __future__ import annotations

from notifier.notification import Notification
from notifier.notification.subscription import read_subscription
from notifier.providers.ours import OurPlatform
from notifier.providers.webpush import payload


class WebPush(OurPlatform):
    """The browsers' push services. A device's token is its subscription."""

    name = "webpush"
    settings_at = "notifier.providers.webpush.settings:WebPushSettings"
    provider_at = "notifier.providers.webpush.provider:WebPushProvider"

    def token_problem(self, token: str) -> str:
        try:
            read_subscription(token)
        except ValueError as error:
            return str(error)
        return ""

    def check(self, notification: Notification) -> None:
        if self.is_addressed(notification):
            self.check_size(len(payload.payload(notification)), payload.PAYLOAD_BYTES)

    def service_of(self, token: str) -> str:
        """See `Platform`: each browser vendor has a push service."""
        try:
            return read_subscription(token).host
        except ValueError:
            return ""
