"""What may stand under `providers` in `notifier.yaml`: the platforms, their apps, and whose secrets are read where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from notifier.errors import SettingsError
from notifier.notification.subscription import KEY_NUMBER, KNOWN_HOSTS, read_subscription
from notifier.rules.policy import Burst, Policy, ProviderLimits, Window
from notifier.settings import checks
from notifier.settings.checks import wrong_at
from notifier.settings.schema_types import (
    AppleEndpoint,
    Contact,
    File,
    Hosts,
    HttpsEndpoint,
    Name,
    Positive,
    Rate,
    Rates,
    Section,
)
from notifier.units import UNITS

TIMEOUT_US: Final = 5 * UNITS["s"]
APPLE_IDS: Final = ("team_id", "key_id", "topic")
BY_TOKEN: Final = ("team_id", "key_id", "key_file")

App = TypeVar("App", bound=Section)


class PlatformSettings(Section, Generic[App]):
    """What the platforms share: named apps, of which each inherits what it does not give.

    A section with named apps is an app itself, the one without a name, only if it gives `identity`.
    """

    platform: ClassVar[str]
    identity: ClassVar[str]

    apps: dict[Name, App] = Field(default_factory=dict)
    timeout_us: Positive = Field(default=TIMEOUT_US, alias="timeout")

    @field_validator("apps")
    @classmethod
    def _told_apart(cls, apps: dict[str, App]) -> dict[str, App]:
        seen: dict[str, str] = {}
        for name in apps:
            if (other := seen.setdefault(_suffix(name), name)) != name:
                raise wrong_at(name, f"cannot be told from {other} in the names of environment variables")
        return apps

    @property
    def app_names(self) -> Sequence[str | None]:
        """The apps that can be sent to; None is the one without a name."""
        unnamed = not self.apps or bool(getattr(self, self.identity))
        return [*([None] if unnamed else []), *self.apps]

    def app(self, name: str | None) -> Self:
        """Return this section as it is for one app, what that one gives put over it; raise KeyError for no app."""
        if name is None:
            return self
        given = self.apps[name]
        return self.model_copy(update={key: getattr(given, key) for key in given.model_fields_set})

    def why_not(self, name: str | None) -> str | None:
        """Say why nothing can be sent by this app, or None if it can."""
        if name in self.app_names:
            return None
        where, known = f"providers.{self.platform}", ", ".join(self.apps)
        if name is None:
            return f"{where} has named apps only: give one of {known}"
        return f"{name!r} is not among {where}.apps; {f'known are {known}' if known else 'there are none'}"

    def why_not_to(self, token: str, app: str | None) -> str | None:  # noqa: ARG002 - most platforms have one server
        """Say why a device with a well-formed token cannot be sent to by this app, or None if it can."""
        return None

    def by_certificate(self, app: str | None) -> bool:  # noqa: ARG002 - Apple's alone
        """Say whether this app signs in by a certificate."""
        return False

    def _read_secret(
        self, environ: Mapping[str, str], variable: str, key: str, app: str | None, with_it: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Return a secret's text and where it came from. An app's own, if it has any, goes before the section's.

        with_it: the keys of which an app that gives one of them must have the secret for itself.
        """
        where = f"providers.{self.platform}"
        if app is not None:
            given, own = self.apps[app], f"{variable}_{_suffix(app)}"
            if environ.get(own) or not given.model_fields_set.isdisjoint((key, *with_it)):
                return checks.from_environment_or_file(environ, own, getattr(given, key), f"{where}.apps.{app}.{key}")
        return checks.from_environment_or_file(environ, variable, getattr(self, key), f"{where}.{key}")


def _suffix(app: str) -> str:
    """Return an app's name as it ends the names of its environment variables."""
    return app.upper().replace("-", "_")


class ApnsApp(Section):
    """What tells one of Apple's apps from another."""

    team_id: str = ""
    key_id: str = ""
    topic: str = ""
    key_file: File | None = None
    cert_file: File | None = None
    cert_key_file: File | None = None
    endpoint: AppleEndpoint = checks.APPLE_ENDPOINTS["production"]
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
        if self.cert_key_file and not self.cert_file:
            raise wrong_at("cert_key_file", "needs cert_file, the certificate that it is the key of")
        return self


class ApnsLimits(Section):
    """What Apple itself admits; an empty list holds nothing back."""

    # Defaults by factory, as all that the JSON Schema cannot say.
    background: Rates = Field(default_factory=lambda: (Window(3, interval_us=UNITS["h"]),))


class ApnsSettings(PlatformSettings[ApnsApp], ApnsApp):
    """Apple. `client: console` prints and needs no other key."""

    platform = "apns"
    identity = "topic"

    client: Literal["h2", "apns2", "console"] = "h2"
    limits: ApnsLimits = Field(default_factory=ApnsLimits)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.client == "console":
            return self
        missing = [
            key if name is None else f"apps.{name}.{key}"
            for name in self.app_names
            for key in (("topic",) if self.app(name).cert_file else APPLE_IDS)
            if not getattr(self.app(name), key)
        ]
        if missing:
            raise wrong_at(
                missing,
                f"is missing; client {self.client} needs team_id, key_id and topic, or cert_file and topic; console"
                " none of them",
            )
        return self

    def app(self, name: str | None) -> Self:
        """See `PlatformSettings.app`. An app with a sign-in of its own has nothing of the section's."""
        mine = super().app(name)
        if name is None:
            return mine
        given = self.apps[name]
        if given.cert_file:
            return mine.model_copy(update={"team_id": "", "key_id": "", "key_file": None})
        if given.model_fields_set.intersection(BY_TOKEN):
            return mine.model_copy(update={"cert_file": None, "cert_key_file": None})
        return mine

    def by_certificate(self, app: str | None) -> bool:
        """See `PlatformSettings.by_certificate`."""
        return self.app(app).cert_file is not None

    def read_key(self, environ: Mapping[str, str], app: str | None = None) -> str:
        """Return the PEM text of the signing key: NOTIFIER_APNS_KEY or else `key_file`, the app's own before all.

        Raise SettingsError if there is neither, or it cannot be read, or it is not a private key in PEM.
        """
        text, where = self._read_secret(environ, "NOTIFIER_APNS_KEY", "key_file", app, with_it=("key_id",))
        return checks.private_pem(text, where)


class FcmApp(Section):
    """What tells one of Firebase's projects from another."""

    service_account: File | None = None
    endpoint: HttpsEndpoint = "https://fcm.googleapis.com"
    ca_file: File | None = None
    dry_run: bool = False


class BurstSettings(Section):
    """So many at once, and then one more each time."""

    burst: int = Field(default=20, ge=1, le=10_000)
    every_us: Positive = Field(default=3 * UNITS["m"], alias="every")


class FcmLimits(Section):
    """What Google itself admits; an empty list, or null, holds nothing back."""

    device: Rates = Field(
        default_factory=lambda: (Window(240, interval_us=UNITS["m"]), Window(5_000, interval_us=UNITS["h"]))
    )
    collapsible: BurstSettings | None = Field(default_factory=BurstSettings)
    project: Rate | None = Field(default_factory=lambda: Window(600_000, interval_us=UNITS["m"]))


class FcmSettings(PlatformSettings[FcmApp], FcmApp):
    """Firebase Cloud Messaging. `client: console` prints and needs no other key."""

    platform = "fcm"
    identity = "service_account"

    client: Literal["pyfcm", "console"] = "pyfcm"
    limits: FcmLimits = Field(default_factory=FcmLimits)

    def read_service_account(self, environ: Mapping[str, str], app: str | None = None) -> dict[str, Any]:
        """Return the service account: NOTIFIER_FCM_SERVICE_ACCOUNT or else the file, the app's own before all.

        Raise SettingsError if there is neither, or it cannot be read, or it is not a service account.
        """
        text, where = self._read_secret(environ, "NOTIFIER_FCM_SERVICE_ACCOUNT", "service_account", app)
        try:
            account = json.loads(text)
        except (ValueError, RecursionError):
            account = None
        if not isinstance(account, dict):
            raise SettingsError(f"{where} is not a JSON object; download the service account's key once more")
        for key in ("project_id", "client_email", "private_key", "token_uri"):
            if not isinstance(account.get(key), str):
                raise SettingsError(f"{where} is not a service account: it has no {key}")
        return account


class WebPushApp(Section):
    """What tells one web push sender from another."""

    key_file: File | None = None
    subject: Contact = ""
    hosts: Hosts = KNOWN_HOSTS
    ca_file: File | None = None


class WebPushSettings(PlatformSettings[WebPushApp], WebPushApp):
    """Browsers. `client: console` prints and needs no other key."""

    platform = "webpush"
    identity = "key_file"

    client: Literal["pywebpush", "console"] = "pywebpush"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        keys = {"subject" if name is None else f"apps.{name}.subject": self.app(name) for name in self.app_names}
        missing = [key for key, mine in keys.items() if not mine.subject]
        if missing and self.client == "pywebpush":
            raise wrong_at(
                missing, "is missing; give a contact address for push services, such as mailto:you@example.com"
            )
        return self

    def read_key(self, environ: Mapping[str, str], app: str | None = None) -> str:
        """Return the VAPID private key: NOTIFIER_WEBPUSH_KEY or else `key_file`, the app's own before all.

        It is PEM, or the 43 characters that other web push libraries print. Raise SettingsError if there is neither, or
        it cannot be read, or it has neither form.
        """
        text, where = self._read_secret(environ, "NOTIFIER_WEBPUSH_KEY", "key_file", app)
        return text.strip() if KEY_NUMBER.fullmatch(text.strip()) else checks.private_pem(text, where)

    def why_not_to(self, token: str, app: str | None) -> str | None:
        """Say why this device cannot be sent to: its push service must be one of `hosts`."""
        subscription = read_subscription(token)
        if subscription.is_at(self.app(app).hosts):
            return None
        own = app is not None and "hosts" in self.apps[app].model_fields_set
        where = f"providers.webpush.apps.{app}.hosts" if own else "providers.webpush.hosts"
        return f"its push service {subscription.host} is not among {where}"


class ProvidersSettings(Section):
    """Whom to send through; a platform that is not named here cannot be sent to."""

    apns: ApnsSettings | None = None
    fcm: FcmSettings | None = None
    webpush: WebPushSettings | None = None

    def limits(self) -> ProviderLimits:
        """Return the providers' own limits, of those that are configured."""
        found = ProviderLimits()
        if self.fcm is not None:
            fcm = self.fcm.limits
            burst = None if fcm.collapsible is None else Burst(fcm.collapsible.burst, every_us=fcm.collapsible.every_us)
            found = replace(found, fcm_device=Policy(fcm.device), fcm_collapsible=burst, fcm_project=fcm.project)
        if self.apns is not None:
            found = replace(found, apns_background=Policy(self.apns.limits.background))
        return found

    def platforms(self) -> dict[str, PlatformSettings[Any]]:
        """Return the sections that are there, by platform."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: section for name, section in found.items() if section is not None}
