"""The settings under `providers.fcm`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from notifier.errors import SettingsError
from notifier.notification.json_values import read_object
from notifier.rules.category import PlatformLimits
from notifier.rules.policy import Burst, Policy, Window
from notifier.settings.checks import File, HttpsEndpoint, Rate, Rates
from notifier.settings.schema_providers import PlatformSettings, Secret
from notifier.settings.schema_rules import Bucket
from notifier.settings.schema_types import Section
from notifier.units import UNITS


class FcmApp(Section):
    """Identify one of Firebase's projects."""

    service_account: File | None = None
    endpoint: HttpsEndpoint = "https://fcm.googleapis.com"
    ca_file: File | None = None
    dry_run: bool = False


class FcmLimits(Section):
    """Limits of Google itself; [] for device, and null for the others, holds nothing back."""

    device: Rates = Field(
        default_factory=lambda: (Window(240, interval_us=UNITS["m"]), Window(5_000, interval_us=UNITS["h"]))
    )
    collapsible: Bucket | None = Field(default_factory=lambda: Burst(20, every_us=3 * UNITS["m"]))
    project: Rate | None = Field(default_factory=lambda: Window(600_000, interval_us=UNITS["m"]))


def _account(text: str, where: str) -> dict[str, Any]:
    account = read_object(text)
    if account is None:
        raise SettingsError(f"{where} is not a JSON object; download the service account's key once more")
    for key in ("project_id", "client_email", "private_key", "token_uri"):
        if not isinstance(account.get(key), str) or not account[key]:
            raise SettingsError(f"{where} is not a service account: it has no {key}")
    return account


class FcmSettings(PlatformSettings[FcmApp], FcmApp):
    """Firebase Cloud Messaging. `client: console` prints and needs no other key."""

    platform = "fcm"
    identity = "service_account"
    secret = Secret("NOTIFIER_FCM_SERVICE_ACCOUNT", "service_account", _account)

    client: Literal["pyfcm", "console"] = "pyfcm"
    limits: FcmLimits = Field(default_factory=FcmLimits)

    def is_dry_run(self, app: str | None) -> bool:
        return not self.prints and self.app(app).dry_run

    @property
    def in_force(self) -> PlatformLimits:
        limits = self.limits
        return PlatformLimits(device=Policy(limits.device), collapsible=limits.collapsible, project=limits.project)
