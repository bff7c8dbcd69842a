"""A notification as the parts of an FCM message.

No driver is imported here: producers load this module to check a payload before anything is written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from notifier.errors import InvalidNotificationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifier.notification import Notification

PAYLOAD_BYTES: Final = 4096
MAX_TTL_S: Final = 2_419_200  # four weeks, also what FCM assumes without a ttl
RESERVED_KEYS: Final = frozenset({"from", "message_type", "gcm", "google"})
RESERVED_PREFIXES: Final = ("google.", "gcm.")

SECOND_US: Final = 1_000_000


def message_arguments(notification: Notification, ttl_us: int | None) -> dict[str, Any]:
    """Build the arguments of pyfcm's `parse_payload` for a notification, save the token.

    FCM's data is text to text: a value that is not text travels as its JSON (``true``, ``3``, ``{"a":1}``).
    ttl_us: microseconds, rounded down to whole seconds; None leaves FCM's four weeks.
    Raises InvalidNotificationError, naming the field, for what FCM does not carry.
    """
    alert = bool(notification.title or notification.body)
    high = alert or notification.priority == "high"
    android: dict[str, Any] = {"priority": "HIGH" if high else "NORMAL"}
    if ttl_us is not None:
        android["ttl"] = f"{min(max(ttl_us // SECOND_US, 0), MAX_TTL_S)}s"
    if notification.collapse_id is not None:
        android["collapse_key"] = notification.collapse_id
    if alert and (shown := _shown(notification)):
        android["notification"] = shown
    for name in ("title", "body", "sound", "collapse_id"):
        _check_unicode(name, getattr(notification, name))
    return {
        "notification_title": notification.title,
        "notification_body": notification.body,
        "data_payload": _data(notification.data),
        "android_config": android,
    }


def payload_size(notification: Notification) -> int:
    """Count the bytes of what FCM limits to `PAYLOAD_BYTES`, as they go on the wire.

    That is: notification, data and Android's notification (sound, tag, count); the token, priority, ttl and
    collapse key only route the message. FCM counts the payload's keys and values; this counts their JSON,
    so it may refuse a little early and never late.
    Raises InvalidNotificationError, naming the field, for what FCM does not carry.
    """
    arguments = message_arguments(notification, None)
    counted: dict[str, Any] = {}
    alert = {name: arguments[f"notification_{name}"] for name in ("title", "body")}
    alert = {name: text for name, text in alert.items() if text}
    if alert:
        counted["notification"] = alert
    if arguments["data_payload"]:
        counted["data"] = arguments["data_payload"]
    if shown := arguments["android_config"].get("notification"):
        counted["android"] = {"notification": shown}
    return len(_json(counted).encode())


def _shown(notification: Notification) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if notification.sound:
        shown["sound"] = notification.sound
    if notification.badge:  # to FCM 0 is "not set"
        shown["notification_count"] = notification.badge
    if notification.collapse_id is not None:
        # The collapse key replaces what is still at FCM, the tag what the device already shows.
        shown["tag"] = notification.collapse_id
    return shown


def _data(data: Mapping[str, Any]) -> dict[str, str]:
    for key in data:
        if key in RESERVED_KEYS or key.startswith(RESERVED_PREFIXES):
            raise InvalidNotificationError(f"data.{key}", "is a key that FCM keeps for itself: rename it")
    text = {key: value if isinstance(value, str) else _json(value) for key, value in data.items()}
    for key, value in text.items():
        _check_unicode("data", key)
        _check_unicode(f"data.{key}", value)
    return text


def _json(value: object) -> str:
    # As pyfcm writes it. `default=dict` is for mappings that are no dict.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=dict)


def _check_unicode(name: str, text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise InvalidNotificationError(name, "is not valid Unicode text") from None
