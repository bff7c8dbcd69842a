"""The settings under `providers.expo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from notifier.errors import SettingsError
from notifier.rules.category import PlatformLimits
from notifier.rules.policy import Policy, Window
from notifier.settings import checks
from notifier.settings.checks import Duration, File, HttpsEndpoint, Rate, Rates, wrong_at
from notifier.settings.schema_providers import PlatformSettings
from notifier.settings.schema_types import Section
from notifier.units import UNITS


class ExpoApp(Section):
    """Identify one of Expo's projects."""

    access_token_file: File | None = None
    open_access: bool = False
    endpoint: HttpsEndpoint = "https://exp.host"
    ca_file: File | None = None

    @model_validator(mode="after")
    def _one_access(self) -> Self:
        if self.open_access and self.access_token_file:
            raise wrong_at("open_access", "and access_token_file are two ways to send; give one of them")
        return self

    @property
    def access(self) -> bool:
        """Whether it says how it sends."""
        return self.open_access or self.access_token_file is not None


class ExpoLimits(Section):
    """Limits of Expo itself; [] for device, and null for project, holds nothing back."""

    device: Rates = ()
    project: Rate | None = Field(default_factory=lambda: Window(600, interval_us=UNITS["s"]))


class ExpoSettings(PlatformSettings[ExpoApp], ExpoApp):
    """Expo. `client: console` prints and needs no other key."""

    platform = "expo"
    identity = "access"

    client: Literal["http", "console"] = "http"
    limits: ExpoLimits = Field(default_factory=ExpoLimits)
    receipts_after_us: Duration = Field(default=15 * UNITS["m"], alias="receipts_after")

    def read_access_token(self, environ: Mapping[str, str], app: str | None = None) -> str:
        """Return the access token: NOTIFIER_EXPO_TOKEN or else `access_token_file`, the app's own before all.

        '' with `open_access` and no token. Raise SettingsError if there is neither, or it cannot be read.
        """
        given = self if app is None else self.apps[app]
        own = ("open_access",) if given.open_access else ()
        try:
            text, where = self.read_secret(environ, "NOTIFIER_EXPO_TOKEN", "access_token_file", app, with_it=own)
        except SettingsError:
            if given.access_token_file is None and self.app(app).open_access:
                return ""
            raise
        return checks.one_line(text, where)

    @property
    def in_force(self) -> PlatformLimits:
        """See `PlatformSettings.in_force`."""
        return PlatformLimits(device=Policy(self.limits.device), project=self.limits.project)
