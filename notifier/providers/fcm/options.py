"""FCM's own options, `Notification.fcm`: every field of Google's REST reference that is for the sender to choose.

What the notification says itself is refused, with the name of the field to use in its place: a ttl of its own would let
a message outlive its expiry. No driver is imported here: producers check with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from notifier.errors import InvalidNotificationError

Check: TypeAlias = Callable[[str, Any], None]
Fields: TypeAlias = Mapping[str, "Check | Fields"]

RESERVED_KEYS: Final = frozenset({"from", "message_type", "gcm", "google"})
RESERVED_PREFIXES: Final = ("google.", "gcm.")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidNotificationError, naming the field, unless FCM takes these options and they suit each other."""
    _check_fields("fcm", options, OPTIONS)
    shown = options.get("android", {}).get("notification", {})
    for name in ("title", "body"):
        if f"{name}_loc_args" in shown and f"{name}_loc_key" not in shown:
            raise InvalidNotificationError(
                f"fcm.android.notification.{name}_loc_args", f"needs {name}_loc_key, the text that they fill"
            )
    if options.get("data_only"):
        for platform in ("android", "webpush"):
            if "notification" in options.get(platform, {}):
                raise InvalidNotificationError(
                    f"fcm.{platform}.notification",
                    "is shown by the system, but with data_only the app shows everything: leave one of them out",
                )


def check_data_key(path: str, key: str) -> None:
    """Raise InvalidNotificationError for a key of data that FCM keeps for itself."""
    if key in RESERVED_KEYS or key.startswith(RESERVED_PREFIXES):
        raise InvalidNotificationError(f"{path}.{key}", "is a key that FCM reserves: rename it")


def _check_fields(path: str, value: Any, fields: Fields) -> None:
    _object(path, value)
    for key, item in value.items():
        where = f"{path}.{key}"
        if where in OURS:
            raise InvalidNotificationError(where, OURS[where])
        rule = fields.get(key)
        if rule is None:
            raise InvalidNotificationError(where, f"is not among FCM's options; known are {', '.join(sorted(fields))}")
        if isinstance(rule, Mapping):
            _check_fields(where, item, rule)
        else:
            rule(where, item)


def _object(path: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InvalidNotificationError(path, f"must be a mapping, is {type(value).__name__}")


def _text(path: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidNotificationError(path, f"must be text, is {type(value).__name__}")


def _texts(path: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidNotificationError(path, f"must be a list of texts, is {type(value).__name__}")
    for index, item in enumerate(value):
        _text(f"{path}[{index}]", item)


def _flag(path: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidNotificationError(path, "must be true or false")


def _count(path: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < 2**31:
        raise InvalidNotificationError(path, "must be a whole number, 0 or more")


def _data(path: str, value: Any) -> None:
    _object(path, value)
    for key in value:
        check_data_key(path, key)


def _headers(path: str, value: Any) -> None:
    _object(path, value)
    for key, item in value.items():
        _text(f"{path}.{key}", item)
        if advice := OURS.get(f"{path}.{key.lower()}"):
            raise InvalidNotificationError(f"{path}.{key}", advice)


def _aps_payload(path: str, value: Any) -> None:
    _object(path, value)
    if "aps" in value:
        _object(f"{path}.aps", value["aps"])


def _durations(path: str, value: Any) -> None:
    _texts(path, value)
    for index, item in enumerate(value):
        _duration(f"{path}[{index}]", item)


def _light(path: str, value: Any) -> None:
    _check_fields(path, value, LIGHT)
    for name in LIGHT:
        if name not in value:
            raise InvalidNotificationError(f"{path}.{name}", "is missing: FCM asks for all three of them")


def _share(path: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidNotificationError(path, "must be a number from 0 to 1")


def _form(pattern: str, meaning: str) -> Check:
    form = re.compile(pattern)

    def check(path: str, value: Any) -> None:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise InvalidNotificationError(path, f"must be {meaning}")

    return check


def _one_of(*words: str) -> Check:
    return _form("|".join(words), f"one of {', '.join(words)}")


_duration: Final = _form(r"[0-9]{1,12}(?:\.[0-9]{1,9})?s", "seconds with an s, such as 0.5s")
_label: Final = _form(r"[A-Za-z0-9\-_.~%]{1,50}", "1 to 50 letters, digits or any of - _ . ~ %")
_link: Final = _form(r"https://[^\s/]\S*", "a URL that begins with https://")
_image: Final = _form(r"https?://[^\s/]\S*", "a URL that begins with https://")

LIGHT: Final[Fields] = {
    "color": dict.fromkeys(("red", "green", "blue", "alpha"), _share),
    "light_on_duration": _duration,
    "light_off_duration": _duration,
}
ANDROID_NOTIFICATION: Final[Fields] = {
    **dict.fromkeys(("title", "body", "icon", "sound", "tag", "click_action", "channel_id", "ticker"), _text),
    **dict.fromkeys(("title_loc_key", "body_loc_key"), _text),
    **dict.fromkeys(("title_loc_args", "body_loc_args"), _texts),
    **dict.fromkeys(("sticky", "local_only", "bypass_proxy_notification"), _flag),
    **dict.fromkeys(("default_sound", "default_vibrate_timings", "default_light_settings"), _flag),
    "color": _form("#[0-9A-Fa-f]{6}", "a colour such as #1a2b3c"),
    "image": _image,
    "event_time": _form(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)",
        "a time with its zone, such as 2030-01-31T12:00:00Z",
    ),
    "notification_count": _count,
    "notification_priority": _one_of(*(f"PRIORITY_{word}" for word in ("MIN", "LOW", "DEFAULT", "HIGH", "MAX"))),
    "visibility": _one_of("PRIVATE", "PUBLIC", "SECRET"),
    "proxy": _one_of("ALLOW", "DENY", "IF_PRIORITY_LOWERED"),
    "vibrate_timings": _durations,
    "light_settings": _light,
}
OPTIONS: Final[Fields] = {
    "data_only": _flag,
    "image": _image,
    "fcm_options": {"analytics_label": _label},
    "android": {
        "priority": _one_of("NORMAL", "HIGH"),
        "restricted_package_name": _text,
        **dict.fromkeys(("direct_boot_ok", "bandwidth_constrained_ok", "restricted_satellite_ok"), _flag),
        "data": _data,
        "notification": ANDROID_NOTIFICATION,
        "fcm_options": {"analytics_label": _label},
    },
    "apns": {
        "headers": _headers,
        "payload": _aps_payload,
        "live_activity_token": _text,
        "fcm_options": {"analytics_label": _label, "image": _image},
    },
    "webpush": {
        "headers": _headers,
        "data": _data,
        "notification": _object,
        "fcm_options": {"analytics_label": _label, "link": _link},
    },
}
_EXPIRY: Final = "is the time left until the notification expires: give expires_in"
_COLLAPSE: Final = "is made of the notification's collapse_id: give that"
_DEVICE: Final = "is a device of the notification: give devices"
# What the notification says itself, headers in lower case.
OURS: Final[Mapping[str, str]] = {
    "fcm.token": _DEVICE,
    "fcm.topic": _DEVICE,
    "fcm.condition": _DEVICE,
    "fcm.notification": "is made of the notification's title and body, and fcm.image",
    "fcm.data": "is the notification's data: give that",
    "fcm.android.ttl": _EXPIRY,
    "fcm.android.collapse_key": _COLLAPSE,
    "fcm.apns.headers.apns-expiration": _EXPIRY,
    "fcm.apns.headers.apns-collapse-id": _COLLAPSE,
    "fcm.webpush.headers.ttl": _EXPIRY,
    "fcm.webpush.headers.topic": _COLLAPSE,
}
