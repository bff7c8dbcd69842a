"""The section `providers` of `notifier.yaml`: the platforms, their apps, and the secrets of each app.

Each platform brings its own section; see `Platform.settings`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, create_model, field_validator, model_validator

from notifier.errors import SettingsError
from notifier.notification import Notification
from notifier.notification.platforms import find, installed
from notifier.rules.category import PlatformLimits
from notifier.rules.policy import Policy
from notifier.settings import checks
from notifier.settings.checks import Name, Positive, wrong_at
from notifier.settings.schema_types import Section
from notifier.units import UNITS

TIMEOUT_US: Final = 5 * UNITS["s"]

App = TypeVar("App", bound=Section)


@dataclass(frozen=True, slots=True)
class Secret:
    """A text with which an app signs in: in an environment variable, or else in the file that `key` names.

    form: turns the text and its origin into the value that the provider takes; raises SettingsError if it cannot.
    with_it: keys; an app that gives one of them needs a secret of its own. optional: a missing secret is ''.
    """

    variable: str
    key: str
    form: Callable[[str, str], Any]
    with_it: tuple[str, ...] = ()
    optional: bool = False


class PlatformSettings(Section, Generic[App]):
    """The keys that platforms share. A named app inherits each value that it does not give from the section.

    A section with named apps is itself an app, the one without a name, only if it gives `identity`. needed: the keys
    that each app must give or inherit. advice: the end of the error if one is missing; {client} in it is the client.
    """

    platform: ClassVar[str]
    identity: ClassVar[str]
    secret: ClassVar[Secret]
    needed: ClassVar[tuple[str, ...]] = ()
    advice: ClassVar[str] = "give it, or client: console"

    client: str = "http"
    apps: dict[Name, App] = Field(default_factory=dict)
    timeout_us: Positive = Field(default=TIMEOUT_US, alias="timeout")

    @field_validator("apps")
    @classmethod
    def _told_apart(cls, apps: dict[str, App]) -> dict[str, App]:
        seen: dict[str, str] = {}
        for name in apps:
            if (other := seen.setdefault(suffix_of(name), name)) != name:
                raise wrong_at(name, f"cannot be told from {other} in the names of environment variables")
        return apps

    @model_validator(mode="after")
    def _complete(self) -> Self:
        apps = {"" if name is None else f"apps.{name}.": self.app(name) for name in self.app_names}
        missing = [where + key for where, mine in apps.items() for key in mine.lacks()]
        if missing and not self.prints:
            raise wrong_at(missing, f"is missing; {self.advice.replace('{client}', self.client)}")
        return self

    def lacks(self) -> Sequence[str]:
        """Return the keys that this app needs and does not have."""
        return [key for key in self.needed if not getattr(self, key)]

    @property
    def app_names(self) -> Sequence[str | None]:
        """The names of the apps that can send; None is the app without a name."""
        unnamed = not self.apps or bool(getattr(self, self.identity))
        return [*([None] if unnamed else []), *self.apps]

    def app(self, name: str | None) -> Self:
        """Return this section with the values of one app in place of its own; raise KeyError for an unknown app."""
        if name is None:
            return self
        given = self.apps[name]
        return self.model_copy(update={key: getattr(given, key) for key in given.model_fields_set})

    def why_not(self, name: str | None) -> str | None:
        """Say why this app cannot send, or None if it can."""
        if name in self.app_names:
            return None
        where, known = f"providers.{self.platform}", ", ".join(self.apps)
        if name is None:
            return f"{where} has named apps only: give one of {known}"
        return f"{name!r} is not among {where}.apps; {f'known are {known}' if known else 'there are none'}"

    def why_not_to(self, token: str, app: str | None) -> str | None:  # noqa: ARG002 - most platforms have one server
        """Say why this app cannot send to a device with this well-formed token, or None if it can."""
        return None

    def check(self, notification: Notification, app: str | None) -> None:
        """Raise InvalidNotificationError if the platform takes the notification, but not from this app's settings."""

    def is_dry_run(self, app: str | None) -> bool:  # noqa: ARG002 - most platforms have no such thing
        """Whether the platform only checks what this app sends, so that nothing reaches a device."""
        return False

    def services(self, app: str | None) -> Sequence[str]:  # noqa: ARG002 - most platforms are one service
        """Return the hosts that the configuration names in full for this app, if the platform is several services."""
        return ()

    def has_service(self, app: str | None, host: str) -> bool:
        """Whether this app may send to a service at that host; '' is the platform itself, if it is one service."""
        return host in (self.services(app) or [""])

    @property
    def in_force(self) -> PlatformLimits:
        """The platform's own limits, from its section `limits` if it has one."""
        given: Iterable[tuple[str, Any]] = getattr(self, "limits", ())
        limits: dict[str, Any] = {key: Policy(each) if isinstance(each, tuple) else each for key, each in given}
        return PlatformLimits(**limits)

    def files(self) -> set[Path]:
        """Return the files from which its apps are built: keys, certificates and accounts."""
        return {value for app in self.app_names for _, value in self.app(app) if isinstance(value, Path)}

    @property
    def prints(self) -> bool:
        """Whether messages are printed instead of sent."""
        return self.client == "console"

    def read_secret(self, environ: Mapping[str, str], app: str | None = None) -> Any:
        """Return the secret of an app: its own, else the one that it inherits from the section.

        Raise SettingsError if there is none, or if it cannot be read or has the wrong form.
        """
        secret, variable, where = self.secret, self.secret.variable, f"providers.{self.platform}"
        given: Section = self
        if app is not None:
            named, own = self.apps[app], f"{variable}_{suffix_of(app)}"
            if environ.get(own) or not named.model_fields_set.isdisjoint((secret.key, *secret.with_it)):
                given, variable, where = named, own, f"{where}.apps.{app}"
        file = getattr(given, secret.key)
        if secret.optional and file is None and not environ.get(variable):
            return ""
        return secret.form(*checks.from_environment_or_file(environ, variable, file, f"{where}.{secret.key}"))


def suffix_of(app: str) -> str:
    """Return the suffix of the names of an app's environment variables."""
    return app.upper().replace("-", "_")


class ProvidersSettings(Section):
    """The push services to send through. Only platforms that are named here can be sent to."""

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """Return each installed platform with its section. A broken platform is left out."""
        found = {}
        for name in installed():
            with contextlib.suppress(SettingsError):
                found[name] = _section_of(name)
        return found

    def platforms(self) -> dict[str, PlatformSettings[Any]]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def limits(self) -> dict[str, PlatformLimits]:
        """Return the own limits of each configured platform that has any."""
        found = {name: section.in_force for name, section in self.platforms().items()}
        return {name: limits for name, limits in found.items() if not limits.is_empty}


def _section_of(name: str) -> type[PlatformSettings[Any]]:
    """Return the section of an installed platform. Raise SettingsError if the platform is broken."""
    platform = find(name)
    assert platform is not None, name
    return platform.settings()


@lru_cache(maxsize=256)
def providers_of(names: tuple[str, ...]) -> type[ProvidersSettings]:
    """Return `ProvidersSettings` with a key for each of these platforms; raise an error at the key of a broken one."""
    fields: dict[str, Any] = {}
    for name in names:
        try:
            fields[name] = (_section_of(name) | None, None)
        except SettingsError as error:
            raise wrong_at(name, str(error)) from None
    return create_model("ProvidersSettings", __base__=ProvidersSettings, __doc__=ProvidersSettings.__doc__, **fields)


def _with_platforms(value: object, info: ValidationInfo) -> object:
    """Validate each platform's section by the schema of the platform."""
    if not isinstance(value, dict) or not value:
        return value
    names = tuple(sorted({str(name) for name in value} & set(installed())))
    return providers_of(names).model_validate(value, context=info.context)


Providers = Annotated[ProvidersSettings, BeforeValidator(_with_platforms)]
