"""Apple's own options, `Notification.apns`: their values, and the types of push that take them.

It imports no driver: producers check with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.options import FLAG, MAPPING, Check, check_fields, must_be, of_form, one_of

PAYLOAD_BYTES: Final = 4096
VOIP_BYTES: Final = 5120
LATEST_S: Final = 7_258_118_400  # the year 2200; a later time was counted in milliseconds
LEVELS: Final = ("passive", "active", "time-sensitive", "critical")
EVENTS: Final = ("start", "update", "end")


@dataclass(frozen=True, slots=True)
class PushType:
    """Apple's requirements of one `apns-push-type`.

    suffix: the topic's part after the app's bundle id. priorities: the allowed ones; the first is the default.
    store: the default; whether Apple keeps it for a device that is off. shows: the notification's own fields that it
    can show. aps: whether the payload has the key ``aps`` even if that is empty. by_token: whether Apple takes it only
    with a provider token, not with a certificate.
    """

    suffix: str = ""
    priorities: tuple[int, ...] = (10, 5, 1)
    payload_bytes: int = PAYLOAD_BYTES
    store: bool = True
    shows: tuple[str, ...] = ()
    aps: bool = True
    by_token: bool = False


SHOWN: Final = ("title", "body", "badge", "sound")
PUSH_TYPES: Final[Mapping[str, PushType]] = {
    "alert": PushType(shows=SHOWN),
    "background": PushType(priorities=(5,)),
    "voip": PushType(".voip", payload_bytes=VOIP_BYTES, store=False, shows=SHOWN, aps=False),
    "liveactivity": PushType(
        ".push-type.liveactivity", priorities=(10, 5), shows=("title", "body", "sound"), by_token=True
    ),
    "location": PushType(".location-query", priorities=(10, 5), by_token=True),
    "pushtotalk": PushType(".voip-ptt", priorities=(10,), store=False),
    "complication": PushType(".complication", aps=False),
    "fileprovider": PushType(".pushkit.fileprovider", aps=False),
    "mdm": PushType(aps=False),
    "widgets": PushType(".push-type.widgets"),
    "controls": PushType(".push-type.controls"),
}
RELOADED: Final = frozenset({"widgets", "controls"})
# The key that a type of push needs in the notification's data.
NEEDED_DATA: Final = {"mdm": "mdm", "fileprovider": "container-identifier"}

_TOPIC: Final = of_form(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", "a topic such as com.example.app")
_PRIORITY: Final = must_be("1, 5 or 10", lambda value: type(value) is int and value in {1, 5, 10})
_TEXT: Final = must_be("text that is not empty", lambda value: isinstance(value, str) and value != "")
_TEXTS: Final = must_be(
    "a list of texts", lambda value: isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
)
_SECONDS: Final = must_be(
    "whole seconds since 1970, such as int(time.time())", lambda value: type(value) is int and 0 <= value < LATEST_S
)


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_sound(value: object) -> bool:
    if not isinstance(value, Mapping) or not {"name"} <= value.keys() <= {"name", "critical", "volume"}:
        return False
    volume, name = value.get("volume", 1), value["name"]
    named = isinstance(name, str) and name != ""
    return named and isinstance(value.get("critical", True), bool) and _is_score(volume) and volume <= 1


_SOUND: Final = must_be(
    'a mapping such as {"name": "alarm.caf", "critical": true, "volume": 0.8}, the volume 0 to 1', _is_sound
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its check, its place and name in the request, and the types of push that take it."""

    check: Check
    place: Literal["header", "aps", "alert"]
    types: frozenset[str]
    name: str = ""


ALERT: Final = frozenset({"alert"})
LIVE: Final = frozenset({"liveactivity"})
OPTIONS: Final[Mapping[str, Option]] = {
    "push_type": Option(one_of(*PUSH_TYPES), "header", frozenset(PUSH_TYPES)),
    "topic": Option(_TOPIC, "header", frozenset(PUSH_TYPES)),
    "priority": Option(_PRIORITY, "header", frozenset(PUSH_TYPES)),
    "store": Option(FLAG, "header", frozenset(PUSH_TYPES)),
    "subtitle": Option(_TEXT, "alert", ALERT, "subtitle"),
    "title_loc_key": Option(_TEXT, "alert", ALERT, "title-loc-key"),
    "title_loc_args": Option(_TEXTS, "alert", ALERT, "title-loc-args"),
    "subtitle_loc_key": Option(_TEXT, "alert", ALERT, "subtitle-loc-key"),
    "subtitle_loc_args": Option(_TEXTS, "alert", ALERT, "subtitle-loc-args"),
    "loc_key": Option(_TEXT, "alert", ALERT, "loc-key"),
    "loc_args": Option(_TEXTS, "alert", ALERT, "loc-args"),
    "launch_image": Option(_TEXT, "alert", ALERT, "launch-image"),
    "sound": Option(_SOUND, "aps", ALERT, "sound"),
    "thread_id": Option(_TEXT, "aps", ALERT, "thread-id"),
    "category": Option(_TEXT, "aps", ALERT, "category"),
    "mutable_content": Option(FLAG, "aps", ALERT, "mutable-content"),
    "content_available": Option(FLAG, "aps", ALERT, "content-available"),
    "interruption_level": Option(one_of(*LEVELS), "aps", ALERT, "interruption-level"),
    "relevance_score": Option(must_be("a number, 0 or more", _is_score), "aps", ALERT | LIVE, "relevance-score"),
    "target_content_id": Option(_TEXT, "aps", ALERT, "target-content-id"),
    "filter_criteria": Option(_TEXT, "aps", ALERT, "filter-criteria"),
    "url_args": Option(_TEXTS, "aps", ALERT, "url-args"),
    "event": Option(one_of(*EVENTS), "aps", LIVE, "event"),
    "timestamp": Option(_SECONDS, "aps", LIVE, "timestamp"),
    "content_state": Option(MAPPING, "aps", LIVE, "content-state"),
    "stale_date": Option(_SECONDS, "aps", LIVE, "stale-date"),
    "dismissal_date": Option(_SECONDS, "aps", LIVE, "dismissal-date"),
    "attributes_type": Option(_TEXT, "aps", LIVE, "attributes-type"),
    "attributes": Option(MAPPING, "aps", LIVE, "attributes"),
    "input_push_token": Option(FLAG, "aps", LIVE, "input-push-token"),
    "input_push_channel": Option(_TEXT, "aps", LIVE, "input-push-channel"),
}
_CHECKS: Final = {name: option.check for name, option in OPTIONS.items()}
# The options that each event of a Live Activity needs.
NEEDED: Final = {
    "start": ("timestamp", "content_state", "attributes_type", "attributes"),
    "update": ("timestamp", "content_state"),
    "end": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class Options:
    """A notification's options after all checks: the parts for the headers, for ``aps`` and for its ``alert``."""

    push_type: str
    topic: str | None
    priority: int
    store: bool
    aps: dict[str, Any]
    alert: dict[str, Any]

    @property
    def type(self) -> PushType:
        return PUSH_TYPES[self.push_type]


# Each of these shows something, so a push with one of them is an alert.
SHOWING: Final = frozenset({"subtitle", "title_loc_key", "subtitle_loc_key", "loc_key", "sound"})


def push_type(notification: Notification) -> str:
    """Return the type that its options name; else an alert if it shows or sounds anything, else a background push."""
    if (given := notification.apns.get("push_type")) is not None:
        return str(given)
    shown = notification.title or notification.body or notification.sound or notification.badge is not None
    return "alert" if shown or not SHOWING.isdisjoint(notification.apns) else "background"


def check_by_certificate(notification: Notification) -> None:
    """Raise InvalidNotificationError for a type of push that Apple takes only with a provider token."""
    asked = PUSH_TYPES.get(kind := push_type(notification))
    if asked is not None and asked.by_token:
        _refuse("push_type", f"{kind} needs a provider token (team_id, key_id, key_file): this app has a certificate")


def read(notification: Notification) -> Options:
    """Return the options. Raises InvalidNotificationError, naming the field, if Apple would not take them."""
    values = notification.apns
    check_fields("apns", values, _CHECKS)
    kind = push_type(notification)
    asked = PUSH_TYPES[kind]
    for name in values:
        if kind not in OPTIONS[name].types:
            _refuse(name, f"means nothing in a push of type {kind}")
    for name in SHOWN:
        if getattr(notification, name) not in {None, ""} and name not in asked.shows:
            raise InvalidNotificationError(name, f"is not shown by a push of type {kind}")
    priority = values.get("priority", asked.priorities[0])
    if priority not in asked.priorities:
        _refuse("priority", f"must be {' or '.join(map(str, asked.priorities))} for a push of type {kind}")
    topic = values.get("topic")
    if topic is not None and not topic.endswith(asked.suffix):
        _refuse("topic", f"must end in {asked.suffix} for a push of type {kind}; without topic, the app's is taken")
    placed = {
        place: {OPTIONS[name].name: _as_sent(name, v) for name, v in values.items() if OPTIONS[name].place == place}
        for place in ("aps", "alert")
    }
    _check_whole(notification, kind, values)
    return Options(kind, topic, priority, values.get("store", asked.store), **placed)


def _as_sent(name: str, value: Any) -> Any:
    """A value as Apple reads it: true is 1, in a sound too."""
    if name == "sound":
        return {key: _as_sent(key, each) for key, each in value.items()}
    return int(value) if isinstance(value, bool) else value


def _check_whole(notification: Notification, kind: str, values: Mapping[str, Any]) -> None:
    if kind == "alert":
        _check_alert(notification, values)
    if kind == "liveactivity":
        _check_live_activity(notification, values)
    if kind == "pushtotalk" and values.get("store"):
        _refuse("store", "must be false for a push of type pushtotalk: what was said is heard now or never")
    if kind == "mdm" and "topic" not in values:
        _refuse("topic", "is missing: of MDM it is the UID in the subject of the push certificate")
    if (key := NEEDED_DATA.get(kind)) and not isinstance(notification.data.get(key), str):
        raise InvalidNotificationError(f"data.{key}", f"is missing: a push of type {kind} needs it, as text")


def _check_alert(notification: Notification, values: Mapping[str, Any]) -> None:
    shown = any(getattr(notification, name) not in {None, ""} for name in SHOWN)
    if not shown and SHOWING.isdisjoint(values):
        _refuse("push_type", "is alert, but there is nothing to show: give a title, body, badge or sound")
    if "sound" in values and notification.sound:
        _refuse("sound", "is given twice, here and as the notification's own sound")
    if values.get("relevance_score", 0) > 1:
        _refuse("relevance_score", "must be 0 to 1 in a push of type alert")


def _check_live_activity(notification: Notification, values: Mapping[str, Any]) -> None:
    event = values.get("event")
    if event is None:
        _refuse("event", f"is missing: {', '.join(EVENTS)}")
    for name in NEEDED[event]:
        if name not in values:
            # Only the producer knows the time of a state: a late retry must not look newer than a later state.
            _refuse(name, f"is missing: a Live Activity's {event} needs {', '.join(NEEDED[event])}")
    if event == "start" and not (notification.title and notification.body):
        raise InvalidNotificationError("title", "and body are needed by a Live Activity's start, which is shown")


def _refuse(name: str, why: str) -> NoReturn:
    raise InvalidNotificationError(f"apns.{name}", why)
