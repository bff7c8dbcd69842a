"""The section `providers` of `notifier.yaml`: the platforms, their apps, and whose secrets are read where.

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
    """A text that an app signs in with: in an environment variable, or else in the file that `key` names.

    form: makes of the text what the provider takes; it is told where the text came from, and raises SettingsError.
    with_it: the keys of which an app that gives one of them must have the secret for itself. optional: it is '' where
    there is none.
    """

    variable: str
    key: str
    form: Callable[[str, str], Any]
    with_it: tuple[str, ...] = ()
    optional: bool = False


class PlatformSettings(Section, Generic[App]):
    """The keys that platforms share: named apps, of which each inherits what it does not give.

    A section with named apps is an app itself, the one without a name, only if it gives `identity`. needed: the keys
    that each app has to give. advice: what is said where one is missing; {client} in it is the client.
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
        """The keys that this app has to give, and does not."""
        return [key for key in self.needed if not getattr(self, key)]

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

    def check(self, notification: Notification, app: str | None) -> None:
        """Raise InvalidNotificationError for what the platform takes, but not of this app as it is configured."""

    def is_dry_run(self, app: str | None) -> bool:  # noqa: ARG002 - most platforms have no such thing
        """Whether the platform only checks what this app sends, so that nothing reaches a device."""
        return False

    def services(self, app: str | None) -> Sequence[str]:  # noqa: ARG002 - most platforms are one service
        """The hosts behind this app that the configuration names in full, for a platform that is several services."""
        return ()

    def has_service(self, app: str | None, host: str) -> bool:
        """Whether this app may send to a service at that host; '' is the platform itself, if it is one service."""
        return host in (self.services(app) or [""])

    @property
    def in_force(self) -> PlatformLimits:
        """The limits of the platform itself: what its section `limits` says, if it has one."""
        given: Iterable[tuple[str, Any]] = getattr(self, "limits", ())
        limits: dict[str, Any] = {key: Policy(each) if isinstance(each, tuple) else each for key, each in given}
        return PlatformLimits(**limits)

    def files(self) -> set[Path]:
        """The files that its apps are built from: keys, certificates and accounts."""
        return {value for app in self.app_names for _, value in self.app(app) if isinstance(value, Path)}

    @property
    def prints(self) -> bool:
        """Whether what would be sent is printed, and nothing is sent."""
        return self.client == "console"

    def read_secret(self, environ: Mapping[str, str], app: str | None = None) -> Any:
        """Return what an app signs in with: its own, if it has any, goes before the section's.

        Raise SettingsError if there is none, or it cannot be read, or it has another form.
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
    """Return an app's name as it ends the names of its environment variables."""
    return app.upper().replace("-", "_")


class ProvidersSettings(Section):
    """Whom to send through; a platform that is not named here cannot be sent to."""

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """The platforms that are installed, with the section of each; one that is broken has none."""
        found = {}
        for name in installed():
            with contextlib.suppress(SettingsError):
                found[name] = _section_of(name)
        return found

    def platforms(self) -> dict[str, PlatformSettings[Any]]:
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: section for name, section in found.items() if section is not None}

    def limits(self) -> dict[str, PlatformLimits]:
        """Return the platforms' own limits, of those that are configured and have any."""
        found = {name: section.in_force for name, section in self.platforms().items()}
        return {name: limits for name, limits in found.items() if not limits.is_empty}


def _section_of(name: str) -> type[PlatformSettings[Any]]:
    """The section that an installed platform brings. Raises SettingsError where that is broken."""
    platform = find(name)
    assert platform is not None, name
    return platform.settings()


@lru_cache(maxsize=256)
def providers_of(names: tuple[str, ...]) -> type[ProvidersSettings]:
    """`ProvidersSettings` with a key for each of these platforms. Raises the error of one that is broken."""
    fields: dict[str, Any] = {}
    for name in names:
        try:
            fields[name] = (_section_of(name) | None, None)
        except SettingsError as error:
            raise wrong_at(name, str(error)) from None
    return create_model("ProvidersSettings", __base__=ProvidersSettings, __doc__=ProvidersSettings.__doc__, **fields)


def _with_platforms(value: object, info: ValidationInfo) -> object:
    """Read each platform's section by the schema that the platform brings."""
    if not isinstance(value, dict) or not value:
        return value
    names = tuple(sorted({str(name) for name in value} & set(installed())))
    return providers_of(names).model_validate(value, context=info.context)


Providers = Annotated[ProvidersSettings, BeforeValidator(_with_platforms)]
