"""A notification as the parts of an FCM message.

No driver is imported here: producers load this module to check a payload before anything is written.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.providers.fcm.options import check_data_key, check_options

PAYLOAD_BYTES: Final = 4096
JSON_BYTES: Final = 6  # the most that one character takes, such as \u001f
BLOCKS_BYTES: Final = 512  # more than a badge and the names around the texts take
MAX_TTL_S: Final = 2_419_200  # four weeks, also what FCM assumes without a ttl
SECOND_US: Final = 1_000_000
# The parts of a platform's block that FCM limits; the rest only routes the message.
COUNTED: Final = {"android": ("data", "notification"), "apns": ("payload",), "webpush": ("data", "notification")}
# The collapse ids that a header of Apple's can carry, and below, a header of web push (RFC 8030).
APNS_COLLAPSE_ID: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
SEEN: Final = frozenset({"alert", "badge", "sound"})  # Apple: any of these makes an alert
WEBPUSH_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")

# Compact, in UTF-8. `default=dict` is for mappings that are no dict.
to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=dict).encode


def message_arguments(notification: Notification, ttl_us: int | None) -> dict[str, Any]:
    """Build the arguments of pyfcm's `parse_payload` for a notification, without the token.

    FCM's data is text to text: a value that is not text travels as its JSON (``true``, ``3``, ``{"a":1}``).
    The notification's own options of FCM override the values made here, but not the expiry: no message outlives it, on
    Android, on Apple's devices or in a browser.
    ttl_us: microseconds, rounded down to whole seconds; 0 is now or never; None leaves FCM's four weeks.
    Raises InvalidNotificationError, naming the field, if FCM cannot carry it.
    """
    options = notification.fcm
    check_options(options)
    title, body, image = notification.title, notification.body, options.get("image")
    data, shown = notification.data, bool(title or body)
    if image is not None and not shown:
        raise InvalidNotificationError("fcm.image", "is shown beside a title or a body, and there is neither")
    high = shown or notification.priority == "high"
    if options.get("data_only"):
        data, shown = _with_text(data, {"title": title, "body": body, "image": image}), False
    ttl_s = None if ttl_us is None else min(max(ttl_us // SECOND_US, 0), MAX_TTL_S)
    arguments: dict[str, Any] = {
        "notification_title": title if shown else None,
        "notification_body": body if shown else None,
        "data_payload": _data("data", data),
        "android_config": _android(notification, ttl_s, shown=shown, high=high),
        "apns_config": _apns(notification, ttl_s, shown=shown),
        "webpush_config": _webpush(notification, ttl_s),
    }
    if shown and image is not None:
        arguments["notification_image"] = image
    if "fcm_options" in options:
        arguments["fcm_options"] = dict(options["fcm_options"])
    return arguments


def is_short(notification: Notification) -> bool:
    """Whether it has text only, and so little that it fits in any encoding: then no message is built for the check."""
    of = notification
    if of.data or of.fcm:
        return False
    texts = len(of.title or "") + len(of.body or "") + 2 * len(of.sound or "") + 2 * len(of.collapse_id or "")
    return BLOCKS_BYTES + JSON_BYTES * texts <= PAYLOAD_BYTES


def payload_size(notification: Notification) -> int:
    """Count the bytes that FCM limits to `PAYLOAD_BYTES`, as they go on the wire.

    These are notification, data, and the payload of each platform's block. The token, priority, ttl and headers only
    route the message. FCM counts the payload's keys and values, this function their JSON: it may refuse a size just
    below the limit, but never accept one above it.
    Raises InvalidNotificationError, naming the field, if FCM cannot carry it.
    """
    arguments = message_arguments(notification, None)
    counted: dict[str, Any] = {}
    alert = {name: text for name in ("title", "body", "image") if (text := arguments.get(f"notification_{name}"))}
    if alert:
        counted["notification"] = alert
    if arguments["data_payload"]:
        counted["data"] = arguments["data_payload"]
    for platform, names in COUNTED.items():
        block = arguments[f"{platform}_config"]
        if payload := {name: block[name] for name in names if name in block}:
            counted[platform] = payload
    return len(to_json(counted).encode())


def _android(notification: Notification, ttl_s: int | None, *, shown: bool, high: bool) -> dict[str, Any]:
    options = notification.fcm.get("android", {})
    block: dict[str, Any] = {"priority": "HIGH" if high else "NORMAL", **options}
    if ttl_s is not None:
        block["ttl"] = f"{ttl_s}s"
    if notification.collapse_id is not None:
        block["collapse_key"] = notification.collapse_id
    look: dict[str, Any] = {}
    if shown:
        if notification.sound:
            look["sound"] = notification.sound
        if notification.badge:  # to FCM 0 is "not set"
            look["notification_count"] = notification.badge
        if notification.collapse_id is not None:
            # The collapse key replaces a message that is still at FCM, the tag one that the device shows.
            look["tag"] = notification.collapse_id
    if look or "notification" in options:
        block["notification"] = look | dict(options.get("notification", {}))
    if "data" in options:
        block["data"] = _data("fcm.android.data", options["data"])
    return block


def _apns(notification: Notification, ttl_s: int | None, *, shown: bool) -> dict[str, Any]:
    options = notification.fcm.get("apns", {})
    block: dict[str, Any] = dict(options)
    headers: dict[str, str] = {}
    if ttl_s is not None:
        headers["apns-expiration"] = str(int(time.time()) + ttl_s if ttl_s else 0)
    if notification.collapse_id is not None and APNS_COLLAPSE_ID.fullmatch(notification.collapse_id):
        headers["apns-collapse-id"] = notification.collapse_id
    payload, given = options.get("payload", {}), options.get("headers", {})
    seen = shown or not SEEN.isdisjoint(payload.get("aps", {}))
    if not seen and (headers or options) and "apns-priority" not in map(str.lower, given):
        headers["apns-priority"] = "5"  # the only one that Apple allows for data alone
    if headers:
        block["headers"] = headers | dict(given)
    aps: dict[str, Any] = {}
    if shown and notification.sound:
        aps["sound"] = notification.sound
    if shown and notification.badge is not None:
        aps["badge"] = notification.badge
    if aps:
        block["payload"] = {**payload, "aps": aps | dict(payload.get("aps", {}))}
    return block


def _webpush(notification: Notification, ttl_s: int | None) -> dict[str, Any]:
    options = notification.fcm.get("webpush", {})
    block: dict[str, Any] = dict(options)
    headers: dict[str, str] = {}
    if ttl_s is not None:
        headers["TTL"] = str(ttl_s)
    if notification.collapse_id is not None and WEBPUSH_TOPIC.fullmatch(notification.collapse_id):
        headers["Topic"] = notification.collapse_id
    if headers:
        block["headers"] = headers | dict(options.get("headers", {}))
    if "data" in options:
        block["data"] = _data("fcm.webpush.data", options["data"])
    return block


def _with_text(data: Mapping[str, Any], texts: Mapping[str, str | None]) -> dict[str, Any]:
    for name, text in texts.items():
        if text and name in data:
            raise InvalidNotificationError(
                f"data.{name}", f"is the key under which fcm.data_only sends the {name}: rename it"
            )
    return {**data, **{name: text for name, text in texts.items() if text}}


def _data(path: str, data: Mapping[str, Any]) -> dict[str, str]:
    for key in data:
        check_data_key(path, key)
    return {key: value if isinstance(value, str) else to_json(value) for key, value in data.items()}
