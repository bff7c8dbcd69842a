"""The payload of an APNs notification as it goes on the wire. Imports no driver: producers check cheaply."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from notifier.errors import InvalidNotificationError

if TYPE_CHECKING:
    from notifier.notification import Notification

PAYLOAD_BYTES: Final = 4096

# Goes into a header as it is: a line break there would end the connection for everybody's messages.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]|^ | $")
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def is_alert(notification: Notification) -> bool:
    """Whether anything of it is shown or heard; if not, it is a background push that wakes the app."""
    return bool(notification.title or notification.body or notification.sound) or notification.badge is not None


def payload(notification: Notification) -> bytes:
    """Return the payload in compact UTF-8 JSON, of any size: `PAYLOAD_BYTES` is what Apple takes.

    Raises InvalidNotificationError for what cannot be sent to Apple at all: a data key ``aps``, text that is
    not Unicode, a collapse id that no header can carry.
    """
    if "aps" in notification.data:
        raise InvalidNotificationError("data.aps", "is Apple's own key: give the data another name")
    if notification.collapse_id is not None and _CONTROL.search(notification.collapse_id):
        raise InvalidNotificationError(
            "collapse_id", "must not have control characters, nor blanks at its ends, for APNs"
        )
    aps: dict[str, Any] = {}
    if alert := {name: text for name in ("title", "body") if (text := getattr(notification, name))}:
        aps["alert"] = alert
    if notification.badge is not None:
        aps["badge"] = notification.badge
    if notification.sound:
        aps["sound"] = notification.sound
    if not aps:
        aps["content-available"] = 1
    try:
        return _encode({"aps": aps, **notification.data}).encode()
    except UnicodeEncodeError:
        raise InvalidNotificationError(_culprit(notification), "is not valid Unicode text") from None


def _culprit(notification: Notification) -> str:
    for name in ("title", "body", "sound"):
        try:
            (getattr(notification, name) or "").encode()
        except UnicodeEncodeError:
            return name
    return "data"
