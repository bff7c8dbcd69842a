"""The checks of FCM on a message: the fields of its REST reference, their types and words, 4,096 bytes of payload."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from notifier.providers.fcm.platform import Fcm

PAYLOAD_BYTES: Final = 4096
MAX_TTL_S: Final = 2_419_200
DURATION: Final = re.compile(r"(\d{1,9})(?:\.\d{1,9})?s")

# A shape is a type, a pattern, the allowed words of a text, a list with the shape of each item, the known fields of an
# object, or TEXTS, an object whose values are all texts.
TEXTS: Final = "text to text"
LABEL: Final = re.compile(r"[A-Za-z0-9\-_.~%]{1,50}")
COLOR: Final = re.compile(r"#[0-9A-Fa-f]{6}")
TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")
HTTPS: Final = re.compile(r"https://\S+")
OPTIONS: Final[Mapping[str, Any]] = {"analytics_label": LABEL}
NOTIFICATION: Final[Mapping[str, Any]] = {"title": str, "body": str, "image": str}
ANDROID_NOTIFICATION: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("title", "body", "icon", "sound", "tag", "click_action", "channel_id", "ticker", "image"), str),
    **dict.fromkeys(("title_loc_key", "body_loc_key"), str),
    "title_loc_args": [str],
    "body_loc_args": [str],
    **dict.fromkeys(("sticky", "local_only", "default_sound", "default_vibrate_timings"), bool),
    **dict.fromkeys(("default_light_settings", "bypass_proxy_notification"), bool),
    "color": COLOR,
    "event_time": TIMESTAMP,
    "notification_priority": frozenset(
        {"PRIORITY_UNSPECIFIED", "PRIORITY_MIN", "PRIORITY_LOW", "PRIORITY_DEFAULT", "PRIORITY_HIGH", "PRIORITY_MAX"}
    ),
    "visibility": frozenset({"VISIBILITY_UNSPECIFIED", "PRIVATE", "PUBLIC", "SECRET"}),
    "proxy": frozenset({"PROXY_UNSPECIFIED", "ALLOW", "DENY", "IF_PRIORITY_LOWERED"}),
    "vibrate_timings": [DURATION],
    "notification_count": int,
    "light_settings": {
        "color": dict.fromkeys(("red", "green", "blue", "alpha"), (int, float)),
        "light_on_duration": DURATION,
        "light_off_duration": DURATION,
    },
}
ANDROID: Final[Mapping[str, Any]] = {
    "collapse_key": str,
    "priority": frozenset({"NORMAL", "HIGH", "normal", "high"}),  # firebase-admin writes them in lower case
    "ttl": DURATION,
    "restricted_package_name": str,
    **dict.fromkeys(("direct_boot_ok", "bandwidth_constrained_ok", "restricted_satellite_ok"), bool),
    "data": TEXTS,
    "notification": ANDROID_NOTIFICATION,
    "fcm_options": OPTIONS,
}
MESSAGE: Final[Mapping[str, Any]] = {
    "token": Fcm.token,
    "notification": NOTIFICATION,
    "data": TEXTS,
    "android": ANDROID,
    "apns": {
        "headers": TEXTS,
        "payload": dict,
        "fcm_options": {**OPTIONS, "image": str},
        "live_activity_token": str,
    },
    "webpush": {
        "headers": TEXTS,
        "data": TEXTS,
        "notification": dict,
        "fcm_options": {**OPTIONS, "link": HTTPS},
    },
    "fcm_options": OPTIONS,
}
# These fields route the message: FCM does not count them against its limit.
ROUTING: Final = {
    "android": frozenset(ANDROID) - {"data", "notification"},
    "apns": frozenset({"headers", "fcm_options", "live_activity_token"}),
    "webpush": frozenset({"headers", "fcm_options"}),
}


def is_valid(message: dict[str, Any]) -> bool:
    """Whether FCM takes a message of this form: known fields, right types, a sane ttl, 4,096 bytes."""
    if not _fits(message, MESSAGE) or "token" not in message:
        return False
    android = message.get("android", {})
    ttl = DURATION.fullmatch(android.get("ttl", "0s"))
    data = (message.get("data", {}), android.get("data", {}), message.get("webpush", {}).get("data", {}))
    return (
        ttl is not None
        and int(ttl[1]) <= MAX_TTL_S
        and not any(_is_reserved(key) for keys in data for key in keys)
        and counted_bytes(message) <= PAYLOAD_BYTES
    )


def counted_bytes(message: dict[str, Any]) -> int:
    """Return the size that FCM limits: of notification, data, and each platform's own payload, as compact JSON."""
    counted: dict[str, Any] = {name: message[name] for name in ("notification", "data") if name in message}
    for platform, routing in ROUTING.items():
        if payload := {key: value for key, value in message.get(platform, {}).items() if key not in routing}:
            counted[platform] = payload
    return len(json.dumps(counted, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


def _fits(value: object, shape: Any) -> bool:
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    if isinstance(shape, frozenset):
        return isinstance(value, str) and value in shape
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, Mapping):
        return isinstance(value, dict) and all(key in shape and _fits(item, shape[key]) for key, item in value.items())
    if shape is TEXTS:
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def _is_reserved(key: str) -> bool:
    return key in {"from", "message_type", "gcm", "google"} or key.startswith(("google.", "gcm."))
