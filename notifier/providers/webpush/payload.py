"""The body for a page's service worker, and its headers. It imports no driver: producers check with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.json_values import to_json
from notifier.notification.options import FLAG, Fields, check_fields, must_be, one_of

# A push service takes bodies of 4,096 bytes. Of these the encryption has 86 for its header, 16 for its seal and 1 for
# the padding's end (RFC 8291, section 4).
PAYLOAD_BYTES: Final = 4096 - 86 - 16 - 1
MAX_TTL_S: Final = 2_419_200  # four weeks: as long as the strictest push service keeps a message
TOPIC_CHARACTERS: Final = 32
SECOND_US: Final = 1_000_000
MAX_ACTIONS: Final = 10
ACTION: Final = frozenset({"action", "title", "icon", "navigate"})
LONGEST_TEXT: Final = 2048
MAX_VIBRATIONS: Final = 100
DECLARATIVE: Final = 8030  # this number, of an RFC, tells a browser to show the message itself

# A page of another scheme cannot be opened, and `javascript:` must not be.
_URL: Final = re.compile(r"(?:https://|/)[^\s\x00-\x1f\\]*")


def payload(notification: Notification) -> bytes:
    """Return the JSON that is encrypted for the service worker, of any size: at most `PAYLOAD_BYTES` can be sent.

    An object of title, body, data, badge (a number), sound, url and options, without empty ones.
    options: the second argument of the page's ``showNotification``, with the collapse id as its tag. With the option
    declarative, it has the form that a browser shows by itself, see `_declarative`.
    Raises InvalidNotificationError, naming the field, for options that a browser would not take.
    """
    options = dict(notification.webpush)
    _check_options(options, tagged=notification.collapse_id is not None)
    if options.pop("declarative", False):
        return to_json(_declarative(notification, options)).encode()
    options.pop("mutable", None)
    message: dict[str, Any] = {}
    for name in ("title", "body", "data", "sound"):
        if value := getattr(notification, name):
            message[name] = value
    if notification.badge is not None:
        message["badge"] = notification.badge
    if "url" in options:
        message["url"] = options.pop("url")
    if notification.collapse_id is not None:
        options.setdefault("tag", notification.collapse_id)
    if options:
        message["options"] = options
    return to_json(message).encode()


def _declarative(notification: Notification, options: dict[str, Any]) -> dict[str, Any]:
    """A message of Declarative Web Push: the W3C's Push API, "declarative push message"."""
    url, mutable = options.pop("url", ""), options.pop("mutable", False)
    if not notification.title:
        raise InvalidNotificationError("title", "is missing: a declarative web push must have one")
    if not url.startswith("https://"):
        raise InvalidNotificationError("webpush.url", "must be an https:// address: a declarative web push opens it")
    shown: dict[str, Any] = {"title": notification.title, "navigate": url}
    if notification.body:
        shown["body"] = notification.body
    if notification.data:
        shown["data"] = notification.data
    if notification.collapse_id is not None:
        shown["tag"] = notification.collapse_id
    message: dict[str, Any] = {"web_push": DECLARATIVE, "notification": shown | options}
    if notification.badge is not None:
        message["app_badge"] = notification.badge
    if mutable:
        message["mutable"] = True
    return message


def headers(notification: Notification, ttl_us: int | None) -> dict[str, str]:
    """Return TTL (the time left, rounded down to whole seconds), Urgency and Topic.

    A later message replaces one with the same topic that still waits at the push service. The topic is the digest of
    the collapse id: always 32 characters, always base64url (Apple decodes it), and it tells the push service nothing.
    """
    ttl_s = MAX_TTL_S if ttl_us is None else min(max(ttl_us // SECOND_US, 0), MAX_TTL_S)
    found = {"TTL": str(ttl_s), "Urgency": notification.priority or "normal"}
    if notification.collapse_id is not None:
        found["Topic"] = hashlib.sha256(notification.collapse_id.encode()).hexdigest()[:TOPIC_CHARACTERS]
    return found


def _check_options(options: Mapping[str, Any], *, tagged: bool) -> None:
    check_fields("webpush", options, OPTIONS)
    # With either of these, showNotification would fail in the browser, where nobody sees it.
    if options.get("renotify") and not (tagged or "tag" in options):
        raise InvalidNotificationError("webpush.renotify", "needs a tag or a collapse_id, which says what it replaces")
    if options.get("silent") and "vibrate" in options:
        raise InvalidNotificationError("webpush.silent", "does not go with vibrate")
    declarative = options.get("declarative", False)
    if options.get("mutable") and not declarative:
        raise InvalidNotificationError("webpush.mutable", "means nothing without declarative")
    opens = [action.get("navigate", "") for action in options.get("actions", ())]
    if not all(url.startswith("https://") for url in opens) if declarative else any(opens):
        why = (
            "each need an https:// address to open as navigate"
            if declarative
            else "have navigate only with declarative"
        )
        raise InvalidNotificationError("webpush.actions", why)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT


def _is_url(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and _URL.fullmatch(value) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_vibrations(value: object) -> bool:
    times = value if isinstance(value, list | tuple) else [value]
    return len(times) <= MAX_VIBRATIONS and all(map(_is_count, times))


def _is_action(value: object) -> bool:
    if not isinstance(value, Mapping) or not {"action", "title"} <= value.keys() <= ACTION:
        return False
    addresses = [value[name] for name in ("icon", "navigate") if name in value]
    return _is_text(value["action"]) and _is_text(value["title"]) and all(map(_is_url, addresses))


def _are_actions(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) <= MAX_ACTIONS and all(map(_is_action, value))


_TEXT: Final = must_be(f"text of 1 to {LONGEST_TEXT} characters", _is_text)
_ADDRESS: Final = must_be("an address: https://… or, in the page's own site, /…", _is_url)
_ACTIONS: Final = must_be(
    f"a list of at most {MAX_ACTIONS} objects: each has action and title, which are text, perhaps icon and navigate,"
    " which are addresses, and nothing else",
    _are_actions,
)
# The options of a notification as the browsers' Notifications API names them, and `url`, which the service worker
# opens at a tap.
OPTIONS: Final[Fields] = {
    "actions": _ACTIONS,
    "badge": _ADDRESS,
    "declarative": FLAG,
    "dir": one_of("auto", "ltr", "rtl"),
    "icon": _ADDRESS,
    "image": _ADDRESS,
    "lang": _TEXT,
    "mutable": FLAG,
    "renotify": FLAG,
    "requireInteraction": FLAG,
    "silent": FLAG,
    "tag": _TEXT,
    "timestamp": must_be("a whole number: milliseconds since 1970", _is_count),
    "url": _ADDRESS,
    "vibrate": must_be(f"milliseconds, or a list of at most {MAX_VIBRATIONS} of them", _are_vibrations),
}
