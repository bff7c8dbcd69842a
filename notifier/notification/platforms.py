"""The platforms: what the rest of the house asks of each, and which are installed.

A platform is ours (`OURS`), or comes with a package that names it under the entry points `notifier.providers`. Both are
found and asked in the same way; docs/how-to/platforms.md says how one is written.
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
PROTOCOL: Final = 1  # one more with each change that a platform written for the last one would not bear
OURS: Final[Mapping[str, str]] = {
    "apns": "notifier.providers.apns.platform:Apns",
    "expo": "notifier.providers.expo.platform:Expo",
    "fcm": "notifier.providers.fcm.platform:Fcm",
    "hms": "notifier.providers.hms.platform:Hms",
    "webpush": "notifier.providers.webpush.platform:WebPush",
}
# The scripts read it out of a job's targets, and it is a part of the names of keys.
NAME: Final = re.compile(r"[a-z][a-z0-9]{0,31}")

# What a message is to the limits of a platform: collapsible, a background push that shows nothing, or none of these.
Kind = Literal["n", "c", "b"]


class Platform(ABC):
    """One platform, made once in a process. A package's entry point names a subclass of it.

    name: as it stands in `Device.platform` and under `providers` in the YAML: small letters and digits.
    protocol: the version of this protocol that the platform is written for.
    options_suffice: its own options alone may make up a message, without a title, a body or data.
    badge_suffices: a badge or a sound alone may.

    What its methods get as `notification` is a `notifier.Notification`, whose own fields have been checked.
    """

    name: ClassVar[str]
    protocol: ClassVar[int] = PROTOCOL
    options_suffice: ClassVar[bool] = False
    badge_suffices: ClassVar[bool] = False

    @abstractmethod
    def token_problem(self, token: str) -> str:
        """Say what is wrong with a device's token, without quoting it; '' where it is well formed. Never raises."""

    @abstractmethod
    def settings(self) -> type[Any]:
        """Return the model of `providers.<name>`: a subclass of `notifier.providers.PlatformSettings`."""

    @abstractmethod
    def provider(self, settings: Any, app: str | None, build: Any) -> Any:
        """Make the provider of one app: a `notifier.providers.Provider`. The driver is to be imported here.

        settings: an object of `settings()`. build: a `notifier.providers.Build`. Raises SettingsError where a secret
        cannot be read, or a package is missing.
        """

    def check(self, notification: Any) -> None:
        """Raise InvalidNotificationError where its options or its size are not what the platform takes.

        Asked at enqueue, of each notification with a device of this platform or with options for it.
        """
        del notification

    def kind(self, notification: Any) -> Kind:
        """Which of the platform's limits it counts against beside those of every message: see `Kind`."""
        del notification
        return "n"

    def service_of(self, token: str) -> str:
        """The host behind a device's token, where the platform is several services with a circuit each; else ''."""
        del token
        return ""

    def is_addressed(self, notification: Any) -> bool:
        """Whether one of the devices is of this platform."""
        return any(device.platform == self.name for device in notification.devices)

    def check_size(self, size: int, limit: int) -> None:
        """Raise InvalidNotificationError where a message is of more bytes than the platform takes."""
        if size > limit:
            why = f"makes {size} bytes on the wire to {self.name}; at most {limit} are taken"
            raise InvalidNotificationError("body", why)


def installed() -> list[str]:
    """The names of all platforms that are installed, in order."""
    return sorted({*OURS, *_of_packages()})


_found: Final[dict[str, Platform | str]] = {}  # each platform that was asked for, or why it cannot be used


def find(name: str) -> Platform | None:
    """The platform of that name; None where none is installed.

    Raises SettingsError where the package that brings it cannot be used.
    """
    found = _found.get(name)
    if found is None:
        entry = EntryPoint(name, OURS[name], GROUP) if name in OURS else _of_packages().get(name)
        if entry is None:  # nothing is kept of it: anybody may invent names
            return None
        found = _found[name] = _load(entry)
    if isinstance(found, str):
        raise SettingsError(found)
    return found


def check_payload(notification: Any) -> None:
    """Raise InvalidNotificationError unless every platform that it goes to, or has options for, would take it."""
    named = {device.platform: None for device in notification.devices} | notification.named_options
    for name in named:
        if (platform := find(name)) is not None:
            platform.check(notification)


def not_installed(name: object) -> str:
    """Say of a name that no platform has it, and which there are."""
    return f"{shown(name)} is not installed; installed are {', '.join(installed())}"


@cache
def _of_packages() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in OURS}


def forget() -> None:
    """Look again at what is installed when next asked: for tests that bring a platform of their own."""
    _found.clear()
    _of_packages.cache_clear()


def _load(entry: EntryPoint) -> Platform | str:
    of = f"the platform {entry.name} of {entry.dist.name if entry.dist else entry.value}"
    try:
        platform = entry.load()()
    except Exception as error:  # noqa: BLE001 - whatever a package of somebody else does at its import
        return f"{of} cannot be loaded: {type(error).__name__}: {error}"
    if not isinstance(platform, Platform):
        return f"{of} is no notifier.providers.Platform but {type(platform).__name__}"
    if platform.name != entry.name or not NAME.fullmatch(entry.name):
        return f"{of} calls itself {platform.name!r}: give both one name of small letters and digits"
    if platform.protocol != PROTOCOL:
        return f"{of} is written for version {platform.protocol} of the protocol; this is {PROTOCOL}"
    return platform
