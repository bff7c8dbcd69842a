"""Apple's push service as a platform: the part that needs no driver."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any, Final

from notifier.notification import Notification
from notifier.notification.platforms import Kind
from notifier.providers.apns import broadcast, payload
from notifier.providers.apns.options import push_type
from notifier.providers.build import Build
from notifier.providers.contract import Provider
from notifier.providers.ours import OurPlatform

CLIENTS: Final = {
    "h2": "notifier.providers.apns.provider:ApnsProvider",
    "apns2": "notifier.providers.apns.pyapns2.provider:Apns2Provider",
}


class Apns(OurPlatform):
    """Apple's push service."""

    name = "apns"
    settings_at = "notifier.providers.apns.settings:ApnsSettings"
    token = re.compile(r"(?:[0-9a-fA-F]{2}){32,100}")  # 32 bytes today; Apple may change the length
    form = "64 to 200 hexadecimal digits, an even number of them"
    options_suffice = True
    badge_suffices = True

    def token_problem(self, token: str) -> str:
        channel_id = broadcast.channel_of(token)
        return broadcast.problem(channel_id) if channel_id else super().token_problem(token)

    def provider(self, settings: Any, app: str | None, build: Build) -> Provider:
        mine = settings.app(app)
        key_id, key = settings.read_key_id(app), "" if mine.cert_file else settings.read_secret(build.environ, app)
        # Apple dislikes many connections, and one serves every topic of the team.
        sign_in = mine.team_id, key_id, key, mine.cert_file, mine.cert_key_file
        same = (self.name, *sign_in, mine.endpoint, mine.ca_file)
        if same not in build.shared:
            client = resolve_name(CLIENTS[settings.client])
            build.shared[same] = client(mine, key_id=key_id, key=key, tokens=build.tokens)
        provider: Provider = build.shared[same].for_topic(mine.topic)
        return provider

    def check(self, notification: Notification) -> None:
        broadcast.check(notification)
        self.check_size(len(payload.payload(notification)), payload.limit(notification))

    def kind(self, notification: Notification) -> Kind:
        """See `Platform`: Apple limits background pushes."""
        return "b" if push_type(notification) == "background" else "n"
