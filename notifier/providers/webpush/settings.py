"""The settings under `providers.webpush`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from notifier.notification.subscription import KEY_NUMBER, KNOWN_HOSTS, is_among, read_subscription
from notifier.settings import checks
from notifier.settings.checks import Contact, File, Hosts
from notifier.settings.schema_providers import PlatformSettings, Secret
from notifier.settings.schema_types import Section


class WebPushApp(Section):
    """Identify one web push sender."""

    key_file: File | None = None
    subject: Contact = ""
    hosts: Hosts = KNOWN_HOSTS
    ca_file: File | None = None


def _key(text: str, where: str) -> str:
    """PEM, or the 43 characters that other web push libraries print."""
    return text.strip() if KEY_NUMBER.fullmatch(text.strip()) else checks.private_pem(text, where)


class WebPushSettings(PlatformSettings[WebPushApp], WebPushApp):
    """Browsers. `client: console` prints and needs no other key."""

    platform = "webpush"
    identity = "key_file"
    secret = Secret("NOTIFIER_WEBPUSH_KEY", "key_file", _key)
    needed = ("subject",)
    advice = "give a contact address for push services, such as mailto:you@example.com"

    client: Literal["pywebpush", "console"] = "pywebpush"

    def why_not_to(self, token: str, app: str | None) -> str | None:
        subscription = read_subscription(token)
        if self.has_service(app, subscription.host):
            return None
        own = app is not None and "hosts" in self.apps[app].model_fields_set
        where = f"providers.webpush.apps.{app}.hosts" if own else "providers.webpush.hosts"
        return f"its push service {subscription.host} is not among {where}"

    def has_service(self, app: str | None, host: str) -> bool:
        return is_among(host, self.app(app).hosts)

    def services(self, app: str | None) -> Sequence[str]:
        return [host for host in self.app(app).hosts if not host.startswith("*.")]
