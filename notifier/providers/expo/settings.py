"""The settings under `providers.expo`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from notifier.rules.policy import Window
from notifier.settings import checks
from notifier.settings.checks import Duration, File, HttpsEndpoint, Rate, Rates
from notifier.settings.schema_providers import PlatformSettings, Secret
from notifier.settings.schema_types import Section
from notifier.units import UNITS


class ExpoApp(Section):
    """Identify one of Expo's projects."""

    access_token_file: File | None = None
    endpoint: HttpsEndpoint = "https://exp.host"
    ca_file: File | None = None


class ExpoLimits(Section):
    """Limits of Expo itself; [] for device, and null for project, holds nothing back."""

    device: Rates = ()
    project: Rate | None = Field(default_factory=lambda: Window(600, interval_us=UNITS["s"]))


class ExpoSettings(PlatformSettings[ExpoApp], ExpoApp):
    """Expo. `client: console` prints and needs no other key."""

    platform = "expo"
    identity = "access_token_file"
    secret = Secret("NOTIFIER_EXPO_TOKEN", "access_token_file", checks.one_line, optional=True)

    client: Literal["http", "console"] = "http"
    limits: ExpoLimits = Field(default_factory=ExpoLimits)
    receipts_after_us: Duration = Field(default=15 * UNITS["m"], alias="receipts_after")
