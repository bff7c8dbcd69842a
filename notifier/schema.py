"""What may stand in `notifier.yaml`: every key, its default, and the objects that are built from it.

Durations are whole microseconds in here (`gap_us`) and text with a unit in the file (`gap: 1.5s`). Nothing
is read while a file is checked; the methods that read a secret do so when called, because a producer that
only enqueues has no keys and must be able to load the same file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from notifier import checks
from notifier.checks import duration, wrong_at
from notifier.errors import SettingsError
from notifier.policy import Category, Lane, OnUnknown, Policies, Policy, Window
from notifier.units import UNITS, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

SECOND: Final = UNITS["s"]
MINUTE: Final = UNITS["m"]
DAY: Final = UNITS["d"]

# What a send may take beyond its provider's timeout: the way to Redis and back, and a busy event loop.
LEASE_MARGIN_US: Final = 2 * SECOND

Duration = Annotated[int, duration(least_us=0)]
Positive = Annotated[int, duration(least_us=UNITS["ms"])]
Windows = Annotated[tuple[Annotated[Window, checks.WINDOW], ...], checks.WINDOWS]
File = Annotated[Path, checks.FILE]
HttpsEndpoint = Annotated[str, checks.HTTPS]
Name = Annotated[str, checks.NAME]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RedisSettings(_Section):
    """Where the queues and the limiter live."""

    # Not in the repr: NOTIFIER_REDIS_URL may bring a password into it.
    url: Annotated[str, checks.REDIS_URL] = Field(default="redis://localhost:6379/0", repr=False)
    password_file: File | None = None
    socket_timeout_us: Positive = Field(default=5 * SECOND, alias="socket_timeout")

    def read_password(self) -> str | None:
        """Return what stands in `password_file`, without the line's end; None where no file is named."""
        if self.password_file is None:
            return None
        password = checks.read_secret(self.password_file, "redis.password_file").rstrip("\r\n")
        if not password:
            raise SettingsError(f"redis.password_file: {self.password_file} is empty")
        return password


class UserSettings(_Section):
    """What one person may receive in all."""

    windows: Windows = ()
    gap_us: Duration = Field(default=0, alias="gap")


class OverrideSettings(_Section):
    """Rules of a tier or of one user; what is not given is taken from `user`."""

    windows: Windows | None = None
    gap_us: Duration | None = Field(default=None, alias="gap")


class CategorySettings(UserSettings):
    """A kind of message: its lane, and rules on top of the user's."""

    lane: Lane
    expires_us: Positive | None = Field(default=None, alias="expires")
    bypass: bool = False
    attempts: int = Field(default=5, ge=1, le=100)
    on_unknown: OnUnknown = "resend"


class ApnsSettings(_Section):
    """Apple. `client: console` prints and needs no other key."""

    client: Literal["h2", "console"] = "h2"
    team_id: str = Field(default="", validate_default=True)
    key_id: str = Field(default="", validate_default=True)
    topic: str = Field(default="", validate_default=True)
    key_file: File | None = None
    endpoint: HttpsEndpoint = "https://api.push.apple.com"
    ca_file: File | None = None
    timeout_us: Positive = Field(default=5 * SECOND, alias="timeout")

    @field_validator("team_id", "key_id", "topic")
    @classmethod
    def _given(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("client") == "h2":
            raise ValueError("is missing; client h2 needs team_id, key_id and topic, client console none of them")
        if value:
            checks.check_apple_id(str(info.field_name), value)
        return value

    def read_key(self, environ: Mapping[str, str]) -> str:
        """Return the PEM text of the signing key, from NOTIFIER_APNS_KEY or else `key_file`.

        Raise SettingsError if there is neither, or it cannot be read, or it is not a private key in PEM.
        """
        text, where = checks.from_environment_or_file(
            environ, "NOTIFIER_APNS_KEY", self.key_file, "providers.apns.key_file"
        )
        # Many hosts can only keep one line in a variable, with \n written out.
        pem = text.replace("\\n", "\n").strip() + "\n"
        if not (pem.startswith("-----BEGIN ") and "PRIVATE KEY-----" in pem.partition("\n")[0]):
            raise SettingsError(f"{where} is not a private key in PEM; it begins with -----BEGIN PRIVATE KEY-----")
        return pem


class FcmSettings(_Section):
    """Firebase Cloud Messaging. `client: console` prints and needs no other key."""

    client: Literal["pyfcm", "console"] = "pyfcm"
    service_account: File | None = None
    endpoint: HttpsEndpoint = "https://fcm.googleapis.com"
    ca_file: File | None = None
    timeout_us: Positive = Field(default=5 * SECOND, alias="timeout")

    def read_service_account(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """Return the service account, from NOTIFIER_FCM_SERVICE_ACCOUNT or else the file `service_account`.

        Raise SettingsError if there is neither, or it cannot be read, or it is not a service account.
        """
        text, where = checks.from_environment_or_file(
            environ, "NOTIFIER_FCM_SERVICE_ACCOUNT", self.service_account, "providers.fcm.service_account"
        )
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


class ProvidersSettings(_Section):
    """Whom to send through; a platform that is not named here cannot be sent to."""

    apns: ApnsSettings | None = None
    fcm: FcmSettings | None = None


class BackoffSettings(_Section):
    """How long to wait between the attempts of one notification: from `first`, doubling, to `most`."""

    first_us: Positive = Field(default=2 * SECOND, alias="first")
    most_us: Positive = Field(default=10 * MINUTE, alias="most")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_us > self.most_us:
            first, most = format_duration(self.first_us), format_duration(self.most_us)
            raise wrong_at("most", f"{most} is less than first, {first}; give at least {first}")
        return self


class WorkerSettings(_Section):
    """How one worker process works."""

    batch: int = Field(default=100, ge=1, le=1_000)
    in_flight: int = Field(default=500, ge=1, le=10_000)
    lease_us: Positive = Field(default=10 * SECOND, alias="lease")
    grace_us: Positive = Field(default=8 * SECOND, alias="grace")
    backoff: BackoffSettings = BackoffSettings()


class LogSettings(_Section):
    """How and how much is logged."""

    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"


def _shape(value: object) -> str:
    return "<tier>" if isinstance(value, str) else "<rules>"


# The tags stand in pydantic's error paths; `settings_errors` takes them out again.
UserEntry = Annotated[
    Annotated[str, checks.TIER, Tag("<tier>")] | Annotated[OverrideSettings, Tag("<rules>")],
    Discriminator(_shape),
]


class Settings(_Section):
    """The whole file."""

    redis: RedisSettings = RedisSettings()
    user: UserSettings = UserSettings()
    tiers: dict[Name, OverrideSettings] = {}
    users: dict[Annotated[str, checks.USER], UserEntry] = {}
    categories: dict[Name, CategorySettings] = {}
    providers: ProvidersSettings = ProvidersSettings()
    worker: WorkerSettings = WorkerSettings()
    keep_failed_us: Positive = Field(default=7 * DAY, alias="keep_failed")
    keep_delivered_us: Duration = Field(default=10 * MINUTE, alias="keep_delivered")
    dedupe_for_us: Positive = Field(default=DAY, alias="dedupe_for")
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _lease_outlasts_every_send(self) -> Self:
        # A lease that ends before the answer lets a second worker send the same again.
        for name, provider in (("apns", self.providers.apns), ("fcm", self.providers.fcm)):
            least = provider.timeout_us + LEASE_MARGIN_US if provider else 0
            if self.worker.lease_us < least:
                lease, margin = format_duration(self.worker.lease_us), format_duration(LEASE_MARGIN_US)
                raise wrong_at(
                    "worker.lease",
                    f"{lease} is too short for the timeout of providers.{name}: "
                    f"give at least {format_duration(least)}, which is the timeout and {margin}",
                )
        return self

    def policies(self) -> Policies:
        """Return the rules of this file, resolved and fast; see `Policies` for the order of resolution."""
        everyone = Policy(self.user.windows, self.user.gap_us)
        return Policies(
            everyone,
            {name: everyone.replaced(tier.windows, tier.gap_us) for name, tier in self.tiers.items()},
            {
                user: entry if isinstance(entry, str) else everyone.replaced(entry.windows, entry.gap_us)
                for user, entry in self.users.items()
            },
            {
                name: Category(
                    name=name,
                    lane=category.lane,
                    policy=Policy(category.windows, category.gap_us),
                    expires_us=category.expires_us,
                    bypass=category.bypass,
                    attempts=category.attempts,
                    on_unknown=category.on_unknown,
                )
                for name, category in self.categories.items()
            },
        )
