"""The settings under `providers.hms`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from notifier.rules.category import PlatformLimits
from notifier.rules.policy import Policy
from notifier.settings import checks
from notifier.settings.checks import File, HttpsEndpoint, Rate, Rates, wrong_at
from notifier.settings.schema_providers import PlatformSettings
from notifier.settings.schema_types import Section


class HmsApp(Section):
    """Identify one of Huawei's apps."""

    app_id: str = ""
    project_id: str = ""
    secret_file: File | None = None
    endpoint: HttpsEndpoint = "https://push-api.cloud.huawei.com"
    token_endpoint: HttpsEndpoint = "https://oauth-login.cloud.huawei.com"  # noqa: S105 - its address
    ca_file: File | None = None

    @field_validator("app_id", "project_id")
    @classmethod
    def _is_a_number(cls, value: str) -> str:
        if value and not (value.isascii() and value.isdigit()):  # a part of the address that messages are sent to
            raise ValueError('is not an id of AppGallery Connect; give its digits in quotes, as in "104200001"')
        return value


class HmsLimits(Section):
    """Limits of Huawei itself; a key that is left out holds nothing back."""

    device: Rates = ()
    project: Rate | None = None


class HmsSettings(PlatformSettings[HmsApp], HmsApp):
    """Huawei. `client: console` prints and needs no other key."""

    platform = "hms"
    identity = "app_id"

    client: Literal["http", "console"] = "http"
    limits: HmsLimits = Field(default_factory=HmsLimits)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        apps = {"app_id" if name is None else f"apps.{name}.app_id": self.app(name) for name in self.app_names}
        missing = [key for key, mine in apps.items() if not mine.app_id]
        if missing and not self.prints:
            raise wrong_at(missing, "is missing; give the app's id of AppGallery Connect, or client: console")
        return self

    def read_client_secret(self, environ: Mapping[str, str], app: str | None = None) -> str:
        """Return the app's secret: NOTIFIER_HMS_SECRET or else `secret_file`, the app's own before all.

        Raise SettingsError if there is neither, or it cannot be read.
        """
        text, where = self.read_secret(environ, "NOTIFIER_HMS_SECRET", "secret_file", app, with_it=("app_id",))
        return checks.one_line(text, where)

    @property
    def in_force(self) -> PlatformLimits:
        """See `PlatformSettings.in_force`."""
        return PlatformLimits(device=Policy(self.limits.device), project=self.limits.project)
