"""A notification in Huawei's form, for v1 and v2 of the REST API. It imports no driver: producers check with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.json_values import to_json
from notifier.notification.options import Fields, check_fields, must_be

PAYLOAD_BYTES: Final = 4096  # of the body without the token
MAX_TTL_S: Final = 1_296_000  # 15 days
MAX_BADGE: Final = 99
OPEN_THE_APP: Final = {"type": 3}

# The options of the shown part, `android.notification` in Huawei's reference, and of the message, `android`.
SHOWN_OPTIONS: Final[Fields] = {
    **dict.fromkeys(("auto_cancel", "default_sound", "foreground_show", "use_default_light"), bool),
    "use_default_vibrate": bool,
    **dict.fromkeys(("auto_clear", "notify_id", "style"), int),
    **dict.fromkeys(("big_body", "big_title", "body_loc_key", "channel_id", "color", "group", "icon", "image"), str),
    **dict.fromkeys(("importance", "notify_summary", "profile_id", "sound", "tag", "ticker"), str),
    **dict.fromkeys(("title_loc_key", "visibility", "when"), str),
    **dict.fromkeys(("body_loc_args", "buttons", "inbox_content", "title_loc_args", "vibrate_config"), list),
    **dict.fromkeys(("badge", "click_action", "light_settings", "multi_lang_key"), dict),
}
OPTIONS: Final[Fields] = {
    **dict.fromkeys(("bi_tag", "category", "receipt_id"), str),
    **dict.fromkeys(("collapse_key", "fast_app_target", "target_user_type"), int),
    "urgency": must_be("HIGH or NORMAL", ("HIGH", "NORMAL").__contains__),
    "notification": SHOWN_OPTIONS,
}


def payload(notification: Notification, token: str, ttl_us: int | None = None) -> bytes:
    """Return the body of a request. Raises InvalidNotificationError if Huawei does not take it."""
    options = notification.options_for("hms")
    check_options(options)
    given = {name: value for name, value in options.items() if name != "notification"}
    android = _android(notification, ttl_us) | given
    message: dict[str, Any] = {"android": android, "token": [token]}
    if shown := _shown(notification, options.get("notification", {})):
        android["notification"] = shown
    if notification.data:
        message["data"] = to_json(dict(notification.data))
    return to_json({"validate_only": False, "message": message}).encode()


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidNotificationError for an option that Huawei does not have, or of another type."""
    check_fields("options.hms", options, OPTIONS)
    if not -1 <= options.get("collapse_key", 0) <= 100:  # noqa: PLR2004 - Huawei's
        raise InvalidNotificationError("options.hms.collapse_key", "must be -1 to 100")


def _android(notification: Notification, ttl_us: int | None) -> dict[str, Any]:
    android: dict[str, Any] = {}
    if notification.priority is not None:
        android["urgency"] = notification.priority.upper()
    if ttl_us is not None:
        android["ttl"] = f"{min(max(math.ceil(ttl_us / 1_000_000), 1), MAX_TTL_S)}s"
    return android


def _shown(notification: Notification, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part that the phone shows; nothing for a message of data alone."""
    if not (notification.title or notification.body):
        if options:
            raise InvalidNotificationError("options.hms.notification", "shows nothing without a title and a body")
        return {}
    if not (notification.title and notification.body):
        missing = "body" if notification.title else "title"
        raise InvalidNotificationError(missing, "is missing: Huawei shows nothing without both")
    shown: dict[str, Any] = {"title": notification.title, "body": notification.body, "click_action": OPEN_THE_APP}
    if notification.collapse_id is not None:
        shown["tag"] = notification.collapse_id  # the next message with the same tag replaces it on the phone
    if notification.badge is not None:
        shown["badge"] = {"set_num": min(notification.badge, MAX_BADGE)}
    if notification.sound == "default":
        shown["default_sound"] = True
    elif notification.sound:
        shown |= {"default_sound": False, "sound": notification.sound}
    badge = {**shown.get("badge", {}), **options.get("badge", {})}
    return shown | dict(options) | ({"badge": badge} if badge else {})
