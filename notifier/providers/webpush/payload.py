"""The body for a page's service worker, and the headers that go with it. Imports no driver: producers check cheaply."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification

# A push service takes bodies of 4,096 bytes. Of these the encryption has 86 for its header, 16 for its seal and 1 for
# the padding's end (RFC 8291, section 4).
PAYLOAD_BYTES: Final = 4096 - 86 - 16 - 1
MAX_TTL_S: Final = 2_419_200  # four weeks: what the strictest of the push services keeps
TOPIC_CHARACTERS: Final = 32
SECOND_US: Final = 1_000_000
MAX_ACTIONS: Final = 10
ACTION: Final = frozenset({"action", "title", "icon", "navigate"})
LONGEST_TEXT: Final = 2048
MAX_VIBRATIONS: Final = 100
DECLARATIVE: Final = 8030  # by this number, an RFC's, a browser knows that it is to show the message itself

# A page of another scheme cannot be opened, and `javascript:` must not be.
_URL: Final = re.compile(r"(?:https://|/)[^\s\x00-\x1f\\]*")
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict).encode


def payload(notification: Notification) -> bytes:
    """Return the JSON that is encrypted for the service worker, of any size: `PAYLOAD_BYTES` is what can be sent.

    An object of title, body, data, badge (a number), sound, url and options, each only if there is something in it.
    options: the second argument of the page's ``showNotification``, with the collapse id as its tag. With the option
    declarative the form that a browser shows by itself, see `_declarative`.
    Raises InvalidNotificationError, naming the field, for options that a browser would not take.
    """
    options = dict(notification.webpush)
    _check_options(options, tagged=notification.collapse_id is not None)
    if options.pop("declarative", False):
        return _encode(_declarative(notification, options)).encode()
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
    return _encode(message).encode()


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

    The topic, by which a later message replaces one that still waits at the push service, is the collapse id's digest:
    that is always within its 32 characters, always base64url (Apple decodes it), and tells the push service nothing.
    """
    ttl_s = MAX_TTL_S if ttl_us is None else min(max(ttl_us // SECOND_US, 0), MAX_TTL_S)
    found = {"TTL": str(ttl_s), "Urgency": notification.priority or "normal"}
    if notification.collapse_id is not None:
        found["Topic"] = hashlib.sha256(notification.collapse_id.encode()).hexdigest()[:TOPIC_CHARACTERS]
    return found


def _check_options(options: Mapping[str, Any], *, tagged: bool) -> None:
    for name, value in options.items():
        check = OPTIONS.get(name)
        if check is None:
            known = ", ".join(sorted(OPTIONS))
            raise InvalidNotificationError(f"webpush.{name}", f"is not an option; known are {known}")
        if why := check(value):
            raise InvalidNotificationError(f"webpush.{name}", why)
    # These two make showNotification fail in the browser, where nobody sees it.
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


def _text(value: object) -> str:
    good = isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT
    return "" if good else f"must be text of 1 to {LONGEST_TEXT} characters"


def _url(value: object) -> str:
    good = isinstance(value, str) and len(value) <= LONGEST_TEXT and _URL.fullmatch(value)
    return "" if good else "must be an address: https://… or, in the page's own site, /…"


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _direction(value: object) -> str:
    return "" if isinstance(value, str) and value in {"auto", "ltr", "rtl"} else "must be auto, ltr or rtl"


def _moment(value: object) -> str:
    good = type(value) is int and value >= 0
    return "" if good else "must be a whole number: milliseconds since 1970"


def _vibrations(value: object) -> str:
    times = value if isinstance(value, list | tuple) else [value]
    good = len(times) <= MAX_VIBRATIONS and all(type(time) is int and time >= 0 for time in times)
    return "" if good else f"must be milliseconds, or a list of at most {MAX_VIBRATIONS} of them"


def _actions(value: object) -> str:
    if not isinstance(value, list | tuple) or len(value) > MAX_ACTIONS:
        return f"must be a list of at most {MAX_ACTIONS} actions"
    for action in value:
        if not isinstance(action, Mapping) or not {"action", "title"} <= action.keys() <= ACTION:
            return "must be a list of objects with action and title, perhaps an icon, and nothing else"
        addresses = [action[name] for name in ("icon", "navigate") if name in action]
        if _text(action["action"]) or _text(action["title"]) or any(map(_url, addresses)):
            return "has an action whose action or title is not text, or whose icon is no address"
    return ""


# The options of a notification as the browsers' Notifications API names them, and `url`, which the service worker
# opens at a tap. What is said of a value that is wrong; nothing of one that is right.
OPTIONS: Final[Mapping[str, Callable[[object], str]]] = {
    "actions": _actions,
    "badge": _url,
    "declarative": _flag,
    "dir": _direction,
    "icon": _url,
    "image": _url,
    "lang": _text,
    "mutable": _flag,
    "renotify": _flag,
    "requireInteraction": _flag,
    "silent": _flag,
    "tag": _text,
    "timestamp": _moment,
    "url": _url,
    "vibrate": _vibrations,
}
