"""HMS Push as a platform: what is asked of it without its driver."""

from __future__ import annotations

import re
from typing import Any, Final

from notifier.notification import Notification
from notifier.notification.platforms import Platform
from notifier.providers.build import Build
from notifier.providers.contract import Provider
from notifier.providers.hms import payload

TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,4096}")


class Hms(Platform):
    """Huawei's phones without Google's services."""

    name = "hms"

    def token_problem(self, token: str) -> str:
        """See `Platform`."""
        return "" if TOKEN.fullmatch(token) else "is not a well-formed hms token: 32 to 4,096 letters, digits, _ and -"

    def settings(self) -> type[Any]:
        """See `Platform`."""
        from notifier.providers.hms.settings import HmsSettings  # noqa: PLC0415 - pydantic, where it is used

        return HmsSettings

    def provider(self, settings: Any, app: str | None, build: Build) -> Provider:
        """See `Platform`."""
        from notifier.providers.hms.provider import HmsProvider  # noqa: PLC0415 - a driver is loaded where it is used

        return HmsProvider(settings.app(app), settings.read_secret(build.environ, app))

    def check(self, notification: Notification) -> None:
        """See `Platform`."""
        if self.is_addressed(notification):
            self.check_size(len(payload.payload(notification, "")), payload.PAYLOAD_BYTES)
        else:
            payload.check_options(notification.options_for(self.name))
