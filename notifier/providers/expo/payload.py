"""A notification in Expo's form. It imports no driver: producers check with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from notifier.notification import Notification
from notifier.notification.json_values import to_json
from notifier.notification.options import Fields, check_fields, one_of

PAYLOAD_BYTES: Final = 4096  # of the message to Apple or Google: as far as is known, Expo's without the token
MAX_TTL_S: Final = 2_419_200
# Expo's own options, and their types.
OPTIONS: Final[Fields] = {
    **dict.fromkeys(("categoryId", "channelId", "icon", "interruptionLevel", "sound", "subtitle"), str),
    **dict.fromkeys(("mutableContent", "_contentAvailable"), bool),
    "richContent": dict,
    "priority": one_of("default", "normal", "high"),
}


def message(notification: Notification, token: str, ttl_us: int | None = None) -> bytes:
    """Return one message of a request. Raises InvalidNotificationError if Expo does not take it."""
    options = notification.options_for("expo")
    check_options(options)
    content: dict[str, Any] = {"to": token}
    for name in ("title", "body", "sound", "badge"):
        if (value := getattr(notification, name)) is not None:
            content[name] = value
    if notification.data:
        content["data"] = dict(notification.data)
    if notification.priority is not None:
        content["priority"] = notification.priority
    if ttl_us is not None:
        content["ttl"] = min(max(math.ceil(ttl_us / 1_000_000), 1), MAX_TTL_S)
    return to_json(content | dict(options)).encode()


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidNotificationError for an option that Expo does not have, or of another type."""
    check_fields("options.expo", options, OPTIONS)
