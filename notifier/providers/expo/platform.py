"""Expo's push service as a platform: the part that needs no driver."""

from __future__ import annotations

import re
from typing import Any

from notifier.notification import Notification
from notifier.providers.build import Build
from notifier.providers.contract import Provider
from notifier.providers.expo import payload
from notifier.providers.ours import OurPlatform


class Expo(OurPlatform):
    """Apps that were built with Expo, on Apple's and Google's phones, through Expo's servers."""

    name = "expo"
    settings_at = "notifier.providers.expo.settings:ExpoSettings"
    token = re.compile(r"Expo(?:nent)?PushToken\[[A-Za-z0-9_-]{10,200}\]")
    form = "ExponentPushToken[…]"
    badge_suffices = True

    def provider(self, settings: Any, app: str | None, build: Build) -> Provider:
        from notifier.providers.expo.provider import ExpoProvider  # noqa: PLC0415 - a driver is loaded where it is used

        secret = settings.read_secret(build.environ, app)
        return ExpoProvider(settings.app(app), secret, lambda late: build.report(late, app))

    def check(self, notification: Notification) -> None:
        if self.is_addressed(notification):
            self.check_size(len(payload.message(notification, "")), payload.PAYLOAD_BYTES)
        else:
            payload.check_options(notification.options_for(self.name))
