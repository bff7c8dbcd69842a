"""HMS Push as a platform: the part that needs no driver."""

from __future__ import annotations

import re

from notifier.notification import Notification
from notifier.providers.hms import payload
from notifier.providers.ours import OurPlatform


class Hms(OurPlatform):
    """Huawei's phones without Google's services."""

    name = "hms"
    settings_at = "notifier.providers.hms.settings:HmsSettings"
    provider_at = "notifier.providers.hms.provider:HmsProvider"
    token = re.compile(r"[A-Za-z0-9_-]{32,4096}")
    form = "32 to 4,096 letters, digits, _ and -"

    def check(self, notification: Notification) -> None:
        if self.is_addressed(notification):
            self.check_size(len(payload.payload(notification, "")), payload.PAYLOAD_BYTES)
        else:
            payload.check_options(notification.options_for(self.name))
