"""The interface of a platform, and which platforms are installed.

A platform is ours (`OURS`), or another package names it by an entry point of the group `notifier.providers`. Both are
used in the same way. docs/how-to/platforms.md says how to write one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Final, Literal

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.units import shown

GROUP: Final = "notifier.providers"
PROTOCOL: Final = 1  # increased by each change that breaks the platforms of other packages
OURS: Final[Mapping[str, str]] = {
    "apns": "notifier.providers.apns.platform:Apns",
    "expo": "notifier.providers.expo.platform:Expo",
    "fcm": "notifier.providers.fcm.platform:Fcm",
    "hms": "notifier.providers.hms.platform:Hms",
    "webpush": "notifier.providers.webpush.platform:WebPush",
}
# The scripts parse it in a job's targets, and the names of keys contain it.
NAME: Final = re.compile(r"[a-z][a-z0-9]{0,31}")

# How the limits of a platform see a message: c is collapsible, b a background push that shows nothing, n neither.
Kind = Literal["n", "c", "b"]


class Platform(ABC):
    """One platform, made once in a process. A package's entry point names a subclass.

    name: small letters and digits; used in `Device.platform` and under `providers` in the YAML.
    protocol: the version of this protocol that the platform is written for.
    options_suffice: its options alone are a message, without a title, a body or data.
    badge_suffices: a badge or a sound alone is a message.

    The argument `notification` of its methods is a `notifier.Notification` whose own fields have been checked.
    """

    name: ClassVar[str]
    protocol: ClassVar[int] = PROTOCOL
    options_suffice: ClassVar[bool] = False
    badge_suffices: ClassVar[bool] = False

    @abstractmethod
    def token_problem(self, token: str) -> str:
        """Say what is wrong with a device's token, without quoting it; '' if it is well formed. Never raises."""

    @abstractmethod
    def settings(self) -> type[Any]:
        """Return the model of `providers.<name>`: a subclass of `notifier.providers.PlatformSettings`."""

    @abstractmethod
    def provider(self, settings: Any, app: str | None, build: Any) -> Any:
        """Make the provider of one app: a `notifier.providers.Provider`. Import the driver here.

        settings: an object of `settings()`. build: a `notifier.providers.Build`. Raises SettingsError if a secret
        cannot be read, or a package is missing.
        """

    def check(self, notification: Any) -> None:
        """Raise InvalidNotificationError if the platform does not take its options or its size.

        Called at enqueue, for each notification with a device of this platform or with options for it.
        """
        del notification

    def kind(self, notification: Any) -> Kind:
        """Which limits of the platform it counts against, in addition to those of every message; see `Kind`."""
        del notification
        return "n"

    def service_of(self, token: str) -> str:
        """The host of the service behind a token, if the platform is several services with a circuit each; else ''."""
        del token
        return ""

    def is_addressed(self, notification: Any) -> bool:
        """Whether one of the devices is of this platform."""
        return any(device.platform == self.name for device in notification.devices)

    def check_size(self, size: int, limit: int) -> None:
        """Raise InvalidNotificationError if a message has more bytes than the platform takes."""
        if size > limit:
            why = f"makes {size} bytes on the wire to {self.name}; at most {limit} are taken"
            raise InvalidNotificationError("body", why)


def installed() -> list[str]:
    """The names of all platforms that are installed, in order."""
    return sorted({*OURS, *_of_packages()})


_found: Final[dict[str, Platform | str]] = {}  # by name: the platform, or why it cannot be used


def find(name: str) -> Platform | None:
    """The platform of that name; None if none is installed.

    Raises SettingsError if its package cannot be used.
    """
    found = _found.get(name)
    if found is None:
        entry = EntryPoint(name, OURS[name], GROUP) if name in OURS else _of_packages().get(name)
        if entry is None:  # not cached: clients may invent any number of names
            return None
        found = _found[name] = _load(entry)
    if isinstance(found, str):
        raise SettingsError(found)
    return found


def check_payload(notification: Any) -> None:
    """Raise InvalidNotificationError unless each platform of its devices and of its options takes it."""
    named = {device.platform: None for device in notification.devices} | notification.named_options
    for name in named:
        if (platform := find(name)) is not None:
            platform.check(notification)


def not_installed(name: object) -> str:
    """Say that no platform of this name is installed, and which are."""
    return f"{shown(name)} is not installed; installed are {', '.join(installed())}"


@cache
def _of_packages() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def forget() -> None:
    """Forget which platforms are installed. Tests that add a platform need this."""
    _found.clear()
    _of_packages.cache_clear()


def _load(entry: EntryPoint) -> Platform | str:
    of = f"the platform {entry.name} of {entry.dist.name if entry.dist else entry.value}"
    try:
        platform = entry.load()()
    except Exception as error:  # noqa: BLE001 - the import of another package may raise anything
        return f"{of} cannot be loaded: {type(error).__name__}: {error}"
    if not isinstance(platform, Platform):
        return f"{of} is no notifier.providers.Platform but {type(platform).__name__}"
    if platform.name != entry.name or not NAME.fullmatch(entry.name):
        return f"{of} calls itself {platform.name!r}: give both one name of small letters and digits"
    if platform.protocol != PROTOCOL:
        return f"{of} is written for version {platform.protocol} of the protocol; this is {PROTOCOL}"
    return platform
