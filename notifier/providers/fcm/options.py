"""FCM's own options, `Notification.fcm`: every field of Google's REST reference that the sender may choose.

Fields that the notification itself has are refused, with the name of the field to use instead: a ttl of its own would
let a message outlive its expiry. It imports no driver: producers check with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification.options import FLAG, MAPPING, TEXT, Fields, check_fields, list_of, must_be, of_form, one_of

RESERVED_KEYS: Final = frozenset({"from", "message_type", "gcm", "google"})
RESERVED_PREFIXES: Final = ("google.", "gcm.")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidNotificationError, naming the field, unless FCM takes these options and they suit each other."""
    _check_ours("fcm", options)
    check_fields("fcm", options, OPTIONS)
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


def _check_ours(path: str, given: Any) -> None:
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if advice := OURS.get(f"{path}.{name}".lower()):
            raise InvalidNotificationError(f"{path}.{name}", advice)
        _check_ours(f"{path}.{name}", value)


def _headers(path: str, value: Any) -> None:
    MAPPING(path, value)
    for name, text in value.items():
        TEXT(f"{path}.{name}", text)


def _aps_payload(path: str, value: Any) -> None:
    MAPPING(path, value)
    MAPPING(f"{path}.aps", value.get("aps", {}))


def _light(path: str, value: Any) -> None:
    check_fields(path, value, LIGHT)
    for name in LIGHT:
        if name not in value:
            raise InvalidNotificationError(f"{path}.{name}", "is missing: FCM asks for all three of them")


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


_TEXTS: Final = list_of(TEXT, "texts")
_DURATION: Final = of_form(r"[0-9]{1,12}(?:\.[0-9]{1,9})?s", "seconds with an s, such as 0.5s")
_LABEL: Final = of_form(r"[A-Za-z0-9\-_.~%]{1,50}", "1 to 50 letters, digits or any of - _ . ~ %")
_LINK: Final = of_form(r"https://[^\s/]\S*", "a URL that begins with https://")
_IMAGE: Final = of_form(r"https?://[^\s/]\S*", "a URL that begins with https://")

LIGHT: Final[Fields] = {
    "color": dict.fromkeys(("red", "green", "blue", "alpha"), must_be("a number from 0 to 1", _is_share)),
    "light_on_duration": _DURATION,
    "light_off_duration": _DURATION,
}
ANDROID_NOTIFICATION: Final[Fields] = {
    **dict.fromkeys(("title", "body", "icon", "sound", "tag", "click_action", "channel_id", "ticker"), TEXT),
    **dict.fromkeys(("title_loc_key", "body_loc_key"), TEXT),
    **dict.fromkeys(("title_loc_args", "body_loc_args"), _TEXTS),
    **dict.fromkeys(("sticky", "local_only", "bypass_proxy_notification"), FLAG),
    **dict.fromkeys(("default_sound", "default_vibrate_timings", "default_light_settings"), FLAG),
    "color": of_form("#[0-9A-Fa-f]{6}", "a colour such as #1a2b3c"),
    "image": _IMAGE,
    "event_time": of_form(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)",
        "a time with its zone, such as 2030-01-31T12:00:00Z",
    ),
    "notification_count": must_be("a whole number, 0 or more", lambda value: type(value) is int and 0 <= value < 2**31),
    "notification_priority": one_of(*(f"PRIORITY_{word}" for word in ("MIN", "LOW", "DEFAULT", "HIGH", "MAX"))),
    "visibility": one_of("PRIVATE", "PUBLIC", "SECRET"),
    "proxy": one_of("ALLOW", "DENY", "IF_PRIORITY_LOWERED"),
    "vibrate_timings": list_of(_DURATION, "texts"),
    "light_settings": _light,
}
OPTIONS: Final[Fields] = {
    "data_only": FLAG,
    "image": _IMAGE,
    "fcm_options": {"analytics_label": _LABEL},
    "android": {
        "priority": one_of("NORMAL", "HIGH"),
        "restricted_package_name": TEXT,
        **dict.fromkeys(("direct_boot_ok", "bandwidth_constrained_ok", "restricted_satellite_ok"), FLAG),
        "data": MAPPING,
        "notification": ANDROID_NOTIFICATION,
        "fcm_options": {"analytics_label": _LABEL},
    },
    "apns": {
        "headers": _headers,
        "payload": _aps_payload,
        "live_activity_token": TEXT,
        "fcm_options": {"analytics_label": _LABEL, "image": _IMAGE},
    },
    "webpush": {
        "headers": _headers,
        "data": MAPPING,
        "notification": MAPPING,
        "fcm_options": {"analytics_label": _LABEL, "link": _LINK},
    },
}
_EXPIRY: Final = "is the time left until the notification expires: give expires_in"
_COLLAPSE: Final = "is made of the notification's collapse_id: give that"
_DEVICE: Final = "is a device of the notification: give devices"
# By path in lower case: options that the notification itself has, and the field to give instead.
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
