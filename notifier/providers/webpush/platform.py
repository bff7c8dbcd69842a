"""Web Push as a platform: what is asked of it without its driver."""

from __future__ import annotations

from typing import Any

from notifier.notification import Notification
from notifier.notification.platforms import Platform
from notifier.notification.subscription import read_subscription
from notifier.providers.build import Build
from notifier.providers.contract import Provider
from notifier.providers.webpush import payload


class WebPush(Platform):
    """The browsers' push services. A device's token is its subscription."""

    name = "webpush"

    def token_problem(self, token: str) -> str:
        """See `Platform`."""
        try:
            read_subscription(token)
        except ValueError as error:
            return str(error)
        return ""

    def settings(self) -> type[Any]:
        """See `Platform`."""
        from notifier.providers.webpush.settings import WebPushSettings  # noqa: PLC0415 - pydantic, where it is used

        return WebPushSettings

    def provider(self, settings: Any, app: str | None, build: Build) -> Provider:
        """See `Platform`."""
        from notifier.providers.webpush.provider import WebPushProvider  # noqa: PLC0415 - an extra

        return WebPushProvider(settings.app(app), settings.read_secret(build.environ, app))

    def check(self, notification: Notification) -> None:
        """See `Platform`."""
        if self.is_addressed(notification):
            self.check_size(len(payload.payload(notification)), payload.PAYLOAD_BYTES)

    def service_of(self, token: str) -> str:
        """See `Platform`: each browser vendor has a push service."""
        try:
            return read_subscription(token).host
        except ValueError:
            return ""
