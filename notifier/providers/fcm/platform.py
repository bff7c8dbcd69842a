"""Firebase Cloud Messaging as a platform: the part that needs no driver."""

from __future__ import annotations

import json
import re
from typing import Any

from notifier.notification import Notification
from notifier.notification.platforms import Kind
from notifier.providers.build import Build
from notifier.providers.contract import Provider
from notifier.providers.fcm import options, payload
from notifier.providers.ours import OurPlatform


class Fcm(OurPlatform):
    """Firebase Cloud Messaging."""

    name = "fcm"
    settings_at = "notifier.providers.fcm.settings:FcmSettings"
    token = re.compile(r"[A-Za-z0-9_:.\-]{16,4096}")  # opaque to us
    form = "16 to 4,096 letters, digits and _:.-"

    def provider(self, settings: Any, app: str | None, build: Build) -> Provider:
        from notifier.providers.fcm.provider import FcmProvider  # noqa: PLC0415 - a driver is loaded where it is used

        mine = settings.app(app)
        account = settings.read_secret(build.environ, app)
        # FCM does not distinguish apps of one project: the device's token names the app.
        same = (self.name, json.dumps(account, sort_keys=True), mine.endpoint, mine.ca_file, mine.dry_run)
        if same not in build.shared:
            build.shared[same] = FcmProvider(mine, account)
        provider: Provider = build.shared[same]
        return provider

    def check(self, notification: Notification) -> None:
        options.check_options(notification.fcm)
        if self.is_addressed(notification) and not payload.is_short(notification):
            self.check_size(payload.payload_size(notification), payload.PAYLOAD_BYTES)

    def kind(self, notification: Notification) -> Kind:
        """See `Platform`: Google limits collapsible messages."""
        return "n" if notification.collapse_id is None else "c"
