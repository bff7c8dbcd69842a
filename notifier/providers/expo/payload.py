"""A notification in Expo's form. Imports no driver: producers check cheaply."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.json_values import check_types

PAYLOAD_BYTES: Final = 4096  # of what reaches Apple or Google; as far as is known, the message without its token
MAX_TTL_S: Final = 2_419_200
# Expo's own options, and what each holds.
OPTIONS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("categoryId", "channelId", "icon", "interruptionLevel", "priority", "sound", "subtitle"), str),
    **dict.fromkeys(("mutableContent", "_contentAvailable"), bool),
    "richContent": dict,
}
PRIORITIES: Final = ("default", "normal", "high")
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def message(notification: Notification, token: str, ttl_us: int | None = None) -> bytes:
    """Return one message of a request. Raises InvalidNotificationError for what Expo does not take."""
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
    return _encode(content | dict(options)).encode()


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidNotificationError for an option that Expo does not have, or of another type."""
    check_types("options.expo", options, OPTIONS)
    if options.get("priority", "high") not in PRIORITIES:
        raise InvalidNotificationError("options.expo.priority", f"must be one of {', '.join(PRIORITIES)}")
