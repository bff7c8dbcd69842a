"""The settings under `providers.expo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from notifier.rules.category import PlatformLimits
from notifier.rules.policy import Policy, Window
from notifier.settings import checks
from notifier.settings.checks import Duration, File, HttpsEndpoint, Rate, Rates
from notifier.settings.schema_providers import PlatformSettings
from notifier.settings.schema_types import Section
from notifier.units import UNITS


class ExpoApp(Section):
    """Identify one of Expo's projects."""

    access_token_file: File | None = None
    open_access: bool = False
    endpoint: HttpsEndpoint = "https://exp.host"
    ca_file: File | None = None


class ExpoLimits(Section):
    """Limits of Expo itself; an empty list, or null, holds nothing back."""

    device: Rates = ()
    project: Rate | None = Field(default_factory=lambda: Window(600, interval_us=UNITS["s"]))


class ExpoSettings(PlatformSettings[ExpoApp], ExpoApp):
    """Expo. `client: console` prints and needs no other key."""

    platform = "expo"
    identity = "access_token_file"

    client: Literal["http", "console"] = "http"
    limits: ExpoLimits = Field(default_factory=ExpoLimits)
    receipts_after_us: Duration = Field(default=15 * UNITS["m"], alias="receipts_after")

    def read_access_token(self, environ: Mapping[str, str], app: str | None = None) -> str:
        """Return the access token: NOTIFIER_EXPO_TOKEN or else `access_token_file`, the app's own before all.

        '' with `open_access`. Raise SettingsError if there is neither, or it cannot be read.
        """
        if self.app(app).open_access:
            return ""
        text, where = self.read_secret(environ, "NOTIFIER_EXPO_TOKEN", "access_token_file", app)
        return checks.one_line(text, where)

    @property
    def in_force(self) -> PlatformLimits:
        """See `PlatformSettings.in_force`."""
        return PlatformLimits(device=Policy(self.limits.device), project=self.limits.project)
