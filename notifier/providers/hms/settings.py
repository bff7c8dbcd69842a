"""The settings under `providers.hms`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from notifier.settings import checks
from notifier.settings.checks import File, HttpsEndpoint, Rate, Rates
from notifier.settings.schema_providers import PlatformSettings, Secret
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
            raise ValueError("is not an id of AppGallery Connect, which has digits only, such as 104200001")
        return value


class HmsLimits(Section):
    """Limits of Huawei itself; a key that is left out holds nothing back."""

    device: Rates = ()
    project: Rate | None = None


class HmsSettings(PlatformSettings[HmsApp], HmsApp):
    """Huawei. `client: console` prints and needs no other key."""

    platform = "hms"
    identity = "app_id"
    secret = Secret("NOTIFIER_HMS_SECRET", "secret_file", checks.one_line, with_it=("app_id",))
    needed = ("app_id",)
    advice = "give the app's id of AppGallery Connect, or client: console"

    client: Literal["http", "console"] = "http"
    limits: HmsLimits = Field(default_factory=HmsLimits)
