"""Notification and Device, and the checks of them that need no configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, get_args

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import platforms
from notifier.notification.json_values import check_mapping, check_text, check_unicode, is_mapping, is_text, plain_text
from notifier.rules.category import Priority
from notifier.rules.zones import check_zone
from notifier.texts import mask, meant
from notifier.units import shown

PRIORITIES: Final = frozenset(get_args(Priority))
COLLAPSE_ID_BYTES: Final = 64
TAG_BYTES: Final = 64
MAX_DEVICES: Final = 1_000  # of one user; the limit bounds the work of the scripts and of a worker
MAX_TAGS: Final = 5
USER_BYTES: Final = 256
BADGES: Final = 2**31  # FCM's badge has 32 bits
OPTIONS: Final = ("apns", "fcm", "webpush")  # the platforms whose options have a field of their own
PLAIN: Final = ("title", "body", "collapse_id", "badge", "sound", "priority", "app")
MAPPINGS: Final = ("data", *OPTIONS, "options")  # the fields that are JSON objects
NAMES: Final = ("user", "category", "collapse_id", "dedupe_key", "app")  # parts of the names of keys and of routes
# Longer than anybody needs, and short enough that Lua's numbers hold its microseconds exactly.
LONGEST_EXPIRY: Final = timedelta(days=36_500)
LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)  # in the scripts, the time of a job that waits only for a route
NAME_FORM: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def route(platform: str, app: str | None) -> str:
    """The name of a route: ``apns``, or ``apns/driver`` for a named app."""
    return platform if app is None else f"{platform}/{app}"


def platform_of(by: str) -> str:
    """The platform in the name of a route, which may also name an app and a service."""
    return by.partition("@")[0].partition("/")[0]


def route_of_all(routes: Iterable[str]) -> str:
    """One name for the routes of several devices, the same for any order of them: ``apns+fcm``."""
    return "+".join(sorted(set(routes)))


def at_service(by: str, host: str) -> str:
    """The name of the route to one service of a platform: ``webpush@updates.push.services.mozilla.com``.

    Each service has a circuit of its own. host: '' if the platform is one service.
    """
    return f"{by}@{host}" if host else by


@dataclass(frozen=True, slots=True)
class Device:
    """One installation of an app: a platform (such as ``apns``, ``fcm`` or ``webpush``) and the token it gave.

    The token of ``webpush`` is the browser's subscription as text, ``JSON.stringify(subscription)`` in the page.
    """

    platform: str
    token: str

    def __post_init__(self) -> None:
        if not type(self.platform) is type(self.token) is str:  # many devices are made, so the usual case is first
            for name, value in (("platform", self.platform), ("token", self.token)):
                object.__setattr__(self, name, plain_text(value))

    def __repr__(self) -> str:
        return f"Device({self.platform!r}, {mask(str(self.token))!r})"

    @property
    def host(self) -> str:
        """The host of a browser's push service; '' for a platform that is one service."""
        platform = platforms.find(self.platform)
        return "" if platform is None else platform.service_of(self.token)


@dataclass(frozen=True)
class Notification:
    """One message for one user, on any number of the user's devices. It counts once against the limits.

    expires_in: it is not sent after this time, counted from `send_at` or from now; a timedelta or seconds.
    priority: "high" goes before all normal ones of its backlog; None is the category's.
    send_at: it is not sent before this time; must have a time zone.
    collapse_id: at most 64 bytes; a later message with the same one replaces this on the device.
    tags: at most 5, of at most 64 bytes each; `Notifier.cancel` finds it by them.
    dedupe_key: two sends for one user with the same key within `dedupe_for` are one notification.
    zone: the time zone for quiet hours and calendar windows, such as ``Europe/Berlin``; None is the configured one.
    app: the named app of the devices' platforms; None is the category's app, or the app without a name.
    apns: Apple's own options, such as push_type and thread_id; docs/how-to/apns.md lists all.
    fcm: Google's own options of the message, such as ``{"android": {"notification": {"channel_id": "news"}}}``.
    webpush: browsers' own options, such as icon, actions and the url to open; docs/how-to/webpush.md lists all.
    options: the options of other platforms, by the platform's name, such as ``{"expo": {"channelId": "news"}}``.
    """

    user: str
    devices: tuple[Device, ...] | list[Device]
    title: str | None = None
    body: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    category: str = "default"
    priority: Priority | None = None
    expires_in: timedelta | float | None = None
    send_at: datetime | None = None
    collapse_id: str | None = None
    dedupe_key: str | None = None
    badge: int | None = None
    sound: str | None = None
    zone: str | None = None
    app: str | None = None
    apns: Mapping[str, Any] = field(default_factory=dict)
    fcm: Mapping[str, Any] = field(default_factory=dict)
    webpush: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields = vars(self)
        for name in NAMES:
            if type(value := fields[name]) is not str and value is not None:
                fields[name] = plain_text(value)

    def __repr__(self) -> str:
        # Without title, body and data: logs and tracebacks contain a repr.
        return f"Notification(user={self.user!r}, category={self.category!r}, devices={self.devices!r})"

    @property
    def expires_in_us(self) -> int | None:
        """`expires_in` in microseconds."""
        if self.expires_in is None:
            return None
        seconds = self.expires_in.total_seconds() if isinstance(self.expires_in, timedelta) else self.expires_in
        return math.ceil(seconds * 1_000_000)

    @property
    def named_options(self) -> dict[str, None]:
        """The platforms for which it has options."""
        fields = vars(self)
        return dict.fromkeys([*[name for name in OPTIONS if fields[name]], *self.options])

    def options_for(self, platform: str) -> Mapping[str, Any]:
        """The options of one platform; empty where it has none."""
        own: Mapping[str, Any] = getattr(self, platform) if platform in OPTIONS else self.options.get(platform, {})
        return own

    def validate(self) -> None:
        """Raise InvalidNotificationError, naming the field, unless every field is well formed.

        The checks that need the configuration (a known category, a configured provider, the size of the
        payload on the wire) are made by `Notifier.send`.
        """
        check_user(self.user)
        check_name("category", self.category)
        if self.app is not None:
            check_name("app", self.app)
        if self.priority is not None and (not is_text(self.priority) or self.priority not in PRIORITIES):
            raise InvalidNotificationError("priority", f"{shown(self.priority)} is neither 'normal' nor 'high'")
        _check_devices(self.devices)
        self._check_shown()
        _check_content(self, MAPPINGS)
        if self.collapse_id is not None:
            check_text("collapse_id", self.collapse_id, COLLAPSE_ID_BYTES)
        if self.dedupe_key is not None:
            check_text("dedupe_key", self.dedupe_key, USER_BYTES)
        _check_tags(self.tags)
        _check_zone(self.zone)
        self._check_times()

    def _check_shown(self) -> None:
        for name, value in (("title", self.title), ("body", self.body), ("sound", self.sound)):
            if value is None:
                continue
            if not is_text(value):
                raise InvalidNotificationError(name, f"must be text, is {type(value).__name__}")
            check_unicode(name, value)
        if self.badge is not None and (type(self.badge) is not int or not 0 <= self.badge < BADGES):
            raise InvalidNotificationError("badge", f"must be a whole number from 0 to {BADGES - 1}")

    def _check_times(self) -> None:
        if self.send_at is not None:
            _check_send_at(self.send_at)
        if self.expires_in is None:
            return
        if isinstance(self.expires_in, bool) or not isinstance(self.expires_in, timedelta | int | float):
            raise InvalidNotificationError("expires_in", "must be a timedelta or a number of seconds")
        seconds = self.expires_in.total_seconds() if isinstance(self.expires_in, timedelta) else self.expires_in
        if isinstance(seconds, float) and not math.isfinite(seconds):
            raise InvalidNotificationError("expires_in", f"must be a finite number of seconds, is {seconds}")
        if seconds <= 0:
            raise InvalidNotificationError("expires_in", "has already passed: give a time in the future")
        if seconds > LONGEST_EXPIRY.total_seconds():
            raise InvalidNotificationError("expires_in", "is more than a hundred years: leave it out for no expiry")

    def to_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the RQ job `notifier.deliver`: plain JSON, without defaults.

        They are for the providers. Fields for the queue alone are in the job's meta (expiry, zone, tags) or serve to
        enqueue it (`send_at`, `dedupe_key`). The priority is here and in the meta: providers have one too.
        """
        kwargs: dict[str, Any] = {
            "user": self.user,
            "devices": [{"platform": d.platform, "token": d.token} for d in self.devices],
            "category": self.category,
        }
        fields = vars(self)
        kwargs |= {name: value for name in PLAIN if (value := fields[name]) is not None}
        kwargs |= {name: dict(value) for name in MAPPINGS if (value := fields[name])}
        return kwargs

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> Self:
        """The notification in a job's keyword arguments; raises InvalidNotificationError if it is malformed."""
        if not is_mapping(kwargs):
            raise InvalidNotificationError("kwargs", "must be an object")
        if not kwargs.keys() <= JOB_FIELDS:
            name = str(next(iter(kwargs.keys() - JOB_FIELDS)))[:USER_BYTES]  # to compare a long name takes much memory
            raise InvalidNotificationError(name, unknown_field(name, JOB_FIELDS))
        for name in NEEDED:
            if name not in kwargs:
                raise InvalidNotificationError(name, "is missing")
        devices = kwargs["devices"]
        if not isinstance(devices, list):
            raise InvalidNotificationError("devices", "must be a list")
        _check_many(devices)
        for index, device in enumerate(devices):
            if not is_mapping(device) or device.keys() != DEVICE_FIELDS:
                raise InvalidNotificationError(f"devices[{index}]", "must have exactly platform and token")
        notification = cls(**{**kwargs, "devices": tuple([Device(d["platform"], d["token"]) for d in devices])})
        notification.validate()
        return notification


def checked_plain(notification: Notification) -> Notification:
    """Make the checks of `validate` that are left once `job.read_notification` has checked types and lengths."""
    _check_tokens(notification.devices)
    _check_content(notification, MAPPINGS)
    return notification


# The fields that a job's keyword arguments may have: `send_at` and `dedupe_key` serve only to enqueue it.
JOB_FIELDS: Final = Notification.__dataclass_fields__.keys() - {"send_at", "dedupe_key"}
DEVICE_FIELDS: Final = {"platform", "token"}
NEEDED: Final = ("user", "devices")


def unknown_field(name: str, known: Iterable[str]) -> str:
    """Say that a name is not a field, and which field it may mean."""
    return f"is not a field; {meant(name, sorted(known))}"


def check_user(user: object) -> str:
    """Return the name of a user as a plain `str`. Raises InvalidNotificationError if it cannot be one."""
    return check_text("user", user, USER_BYTES)


def _check_tags(tags: object) -> None:
    if not isinstance(tags, list | tuple):
        raise InvalidNotificationError("tags", f"give a list of texts, not {type(tags).__name__}")
    if len(tags) > MAX_TAGS:
        raise InvalidNotificationError("tags", f"are {len(tags)}; at most {MAX_TAGS} are allowed")
    for index, tag in enumerate(tags):
        check_text(f"tags[{index}]", tag, TAG_BYTES)


def _check_zone(zone: object) -> None:
    if zone is None:
        return
    try:
        check_zone(zone)
    except ValueError as error:
        raise InvalidNotificationError("zone", str(error)) from None


def check_name(field: str, value: object) -> None:
    """Refuse a value that cannot be the name of a category or of an app."""
    if not is_text(value) or not NAME_FORM.fullmatch(value):
        raise InvalidNotificationError(field, f"{shown(value)} is not a name of small letters, digits, _ and -")


def _check_send_at(at: object) -> None:
    if not isinstance(at, datetime):
        raise InvalidNotificationError("send_at", f"must be a datetime, is {type(at).__name__}")
    if at != at:  # noqa: PLR0124 - NaT of pandas, whose `utcoffset` raises
        raise InvalidNotificationError("send_at", "is no time: leave it out to send at once")
    if at.utcoffset() is None:
        raise InvalidNotificationError("send_at", "needs a time zone, such as 2026-12-24T18:00:00+01:00")
    if at >= LATEST:
        raise InvalidNotificationError("send_at", f"must be before {LATEST.year}")


def _check_many(devices: Sequence[object]) -> None:
    if len(devices) > MAX_DEVICES:
        raise InvalidNotificationError("devices", f"are {len(devices):,}; one user has at most {MAX_DEVICES:,}")


def _check_devices(devices: object) -> None:
    if not isinstance(devices, list | tuple) or not devices:
        raise InvalidNotificationError("devices", "give a list of at least one Device")
    _check_many(devices)
    for index, device in enumerate(devices):
        if not isinstance(device, Device):
            raise InvalidNotificationError(f"devices[{index}]", f"must be a Device, is {type(device).__name__}")
    _check_tokens(devices)


def _check_tokens(devices: Sequence[Device]) -> None:
    places: dict[Device, int] = {}
    for index, device in enumerate(devices):
        _check_token(device, index)
        if (first := places.setdefault(device, index)) != index:
            raise InvalidNotificationError(f"devices[{index}]", f"is the same device as devices[{first}]")


def _check_token(device: Device, index: int) -> None:
    token = device.token
    platform = _platform(device.platform, "devices[{}].platform", index)
    wrong = platform.token_problem(token) if is_text(token) else f"must be text, is {type(token).__name__}"
    if wrong:
        raise InvalidNotificationError(f"devices[{index}].token", wrong)


def _platform(name: object, field: str, place: object) -> platforms.Platform:
    """Find a platform by its name. Raises InvalidNotificationError for `field`, with `place` in its {}."""
    try:
        found = platforms.find(name) if is_text(name) else None
    except SettingsError as error:
        raise InvalidNotificationError(field.format(place), str(error)) from None
    if found is None:
        raise InvalidNotificationError(field.format(place), platforms.not_installed(name))
    return found


def _check_content(notification: Notification, mappings: Iterable[str]) -> None:
    fields = vars(notification)
    for name in mappings:
        if (value := fields[name]) != {}:
            check_mapping(name, value)
    _check_options(notification.options)
    if notification.title or notification.body or notification.data:
        return
    heard = notification.sound or notification.badge is not None
    for device in notification.devices:
        platform = platforms.find(device.platform)
        # To some platforms the options alone, or a badge or a sound alone, are a message.
        if not platform or not (
            (platform.badge_suffices and heard)
            or (platform.options_suffice and notification.options_for(device.platform))
        ):
            raise InvalidNotificationError("body", "nothing to send: give a title, a body or data")


def _check_options(options: Mapping[str, object]) -> None:
    for name, given in options.items():
        if name in OPTIONS:
            raise InvalidNotificationError(f"options.{name}", f"has a field of its own: give them as {name}")
        _platform(name, "options.{}", name)
        if not is_mapping(given):
            raise InvalidNotificationError(f"options.{name}", f"must be a mapping, is {type(given).__name__}")
