"""The settings under `providers.apns`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from notifier.errors import SettingsError
from notifier.notification import Notification
from notifier.providers.apns.options import check_by_certificate
from notifier.rules.policy import Window
from notifier.settings import checks
from notifier.settings.checks import AppleEndpoint, File, HttpsEndpoint, Rates, wrong_at
from notifier.settings.schema_providers import PlatformSettings, Secret
from notifier.settings.schema_types import Section
from notifier.units import UNITS

APPLE_IDS: Final = ("team_id", "key_id", "topic")
BY_TOKEN: Final = ("team_id", "key_id", "key_id_file", "key_file")


class ApnsApp(Section):
    """Identify one of Apple's apps."""

    team_id: str = ""
    key_id: str = ""
    key_id_file: File | None = None
    topic: str = ""
    key_file: File | None = None
    cert_file: File | None = None
    cert_key_file: File | None = None
    endpoint: AppleEndpoint = checks.APPLE_ENDPOINTS["production"]
    channels_endpoint: HttpsEndpoint | None = None
    ca_file: File | None = None

    @field_validator(*APPLE_IDS)
    @classmethod
    def _well_formed(cls, value: str, info: ValidationInfo) -> str:
        if value:
            checks.check_apple_id(str(info.field_name), value)
        return value

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.cert_file and (also := self.model_fields_set.intersection(BY_TOKEN)):
            raise wrong_at("cert_file", f"and {min(also)} are two ways to sign in; give one of them")
        if self.key_id and self.key_id_file:
            raise wrong_at("key_id_file", "and key_id say the same; give one of them")
        if self.cert_key_file and not self.cert_file:
            raise wrong_at("cert_key_file", "needs cert_file, the certificate that it is the key of")
        return self


class ApnsLimits(Section):
    """Limits of Apple itself; an empty list holds nothing back."""

    # By a factory, like every default that the JSON Schema cannot express.
    background: Rates = Field(default_factory=lambda: (Window(3, interval_us=UNITS["h"]),))


class ApnsSettings(PlatformSettings[ApnsApp], ApnsApp):
    """Apple. `client: console` prints and needs no other key."""

    platform = "apns"
    identity = "topic"
    secret = Secret("NOTIFIER_APNS_KEY", "key_file", checks.private_pem, with_it=("key_id", "key_id_file"))
    needed = APPLE_IDS
    advice = "client {client} needs team_id, key_id and topic, or cert_file and topic; console none of them"

    client: Literal["h2", "apns2", "console"] = "h2"
    limits: ApnsLimits = Field(default_factory=ApnsLimits)

    def lacks(self) -> Sequence[str]:
        """See `PlatformSettings.lacks`. With a certificate no token is needed, and a key's id may be in a file."""
        missing = super().lacks()
        if self.cert_file:
            return [key for key in missing if key == "topic"]
        return [key for key in missing if key != "key_id" or not self.key_id_file]

    def app(self, name: str | None) -> Self:
        """See `PlatformSettings.app`. An app with a sign-in of its own inherits none of the section's."""
        mine = super().app(name)
        if name is None:
            return mine
        given = self.apps[name]
        if given.cert_file:
            return mine.model_copy(update={"team_id": "", "key_id": "", "key_id_file": None, "key_file": None})
        if given.model_fields_set.intersection(BY_TOKEN):
            mine = mine.model_copy(update={"cert_file": None, "cert_key_file": None})
        return mine.model_copy(update={"key_id_file": None}) if given.key_id else mine

    def check(self, notification: Notification, app: str | None) -> None:
        """See `PlatformSettings.check`: Apple takes some types of push only with a provider token."""
        if notification.apns and self.app(app).cert_file is not None:
            check_by_certificate(notification)

    def read_key_id(self, app: str | None = None) -> str:
        """Return the id of the signing key: `key_id`, or the text of `key_id_file`. Raises SettingsError."""
        mine = self.app(app)
        if mine.key_id_file is None:
            return mine.key_id
        key = f"providers.apns.{'' if app is None else f'apps.{app}.'}key_id_file"
        key_id = checks.one_line(checks.read_secret(mine.key_id_file, key), f"{key}: {mine.key_id_file}")
        try:
            checks.check_apple_id("key_id", key_id)
        except ValueError as error:
            raise SettingsError(f"{key}: {mine.key_id_file}: {error}") from None
        return key_id
