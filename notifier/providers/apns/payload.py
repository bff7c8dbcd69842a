"""The payload of an APNs notification as it goes on the wire. It imports no driver: producers check with it."""

from __future__ import annotations

import re
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.json_values import to_json
from notifier.providers.apns import broadcast
from notifier.providers.apns import options as apns_options
from notifier.providers.apns.options import PAYLOAD_BYTES, PUSH_TYPES, RELOADED, Options, push_type

__all__ = ["PAYLOAD_BYTES", "limit", "payload"]

# A collapse id goes into a header unchanged: a line break in it would end the connection for all messages.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]|^ | $")


def limit(notification: Notification) -> int:
    """Return how many bytes of payload Apple takes for this type of push."""
    if broadcast.goes_to_channels(notification):
        return broadcast.PAYLOAD_BYTES
    return PUSH_TYPES[push_type(notification)].payload_bytes


def payload(notification: Notification, options: Options | None = None) -> bytes:
    """Return the payload in compact UTF-8 JSON, of any size: `limit` is the size that Apple takes.

    options: the result of `apns_options.read`, if the caller has it.
    Raises InvalidNotificationError if it cannot be sent to Apple at all: an option that Apple does not have, a data
    key ``aps``, a collapse id that no header can carry.
    """
    if "aps" in notification.data:
        raise InvalidNotificationError("data.aps", "is Apple's own key: give the data another name")
    if notification.collapse_id is not None and _CONTROL.search(notification.collapse_id):
        raise InvalidNotificationError(
            "collapse_id", "must not have control characters, nor blanks at its ends, for APNs"
        )
    if notification.apns:
        options = options or apns_options.read(notification)
        content = _with_options(notification, options)
    else:
        aps = _shown(notification)
        content = {"aps": aps or {"content-available": 1}, **notification.data}
    return to_json(content).encode()


def _shown(notification: Notification) -> dict[str, Any]:
    aps: dict[str, Any] = {}
    if alert := {name: text for name in ("title", "body") if (text := getattr(notification, name))}:
        aps["alert"] = alert
    if notification.badge is not None:
        aps["badge"] = notification.badge
    if notification.sound:
        aps["sound"] = notification.sound
    return aps


def _with_options(notification: Notification, options: Options) -> dict[str, Any]:
    aps = _shown(notification)
    if options.alert:
        aps["alert"] = aps.get("alert", {}) | options.alert
    if options.push_type == "liveactivity" and "sound" in aps:
        aps.setdefault("alert", {})["sound"] = aps.pop("sound")  # a Live Activity's sound is part of its alert
    if options.push_type == "background":
        aps["content-available"] = 1
    if options.push_type in RELOADED:
        aps["content-changed"] = True
    aps |= options.aps
    return {"aps": aps, **notification.data} if aps or options.type.aps else dict(notification.data)
