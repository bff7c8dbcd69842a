"""FCM's wire format, both ways: a notification into the parts of a message, an answer into an outcome.

No driver is imported here: producers load this module to check a payload before anything is written.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from notifier.errors import InvalidNotificationError
from notifier.providers.contract import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifier.notification import Notification

PAYLOAD_BYTES: Final = 4096
MAX_TTL_S: Final = 2_419_200  # four weeks, also what FCM assumes without a ttl
RESERVED_KEYS: Final = frozenset({"from", "message_type", "gcm", "google"})
RESERVED_PREFIXES: Final = ("google.", "gcm.")

OK: Final = 200
SERVER_ERROR: Final = 500

SECOND_US: Final = 1_000_000
FAULT_WAIT_US: Final = 60 * SECOND_US
LONGEST_WAIT_US: Final = 24 * 3600 * SECOND_US
REASON_LENGTH: Final = 80

# By status and FCM's own errorCode; where a pair is not listed, the status alone decides.
OUTCOMES: Final[Mapping[tuple[int, str], Outcome]] = {
    (404, "UNREGISTERED"): Outcome.DEAD_TOKEN,
    (403, "SENDER_ID_MISMATCH"): Outcome.REJECTED,
    (
        401,
        "THIRD_PARTY_AUTH_ERROR",
    ): Outcome.FAULT,  # the app's APNs key or web push key, not our access token
}
OUTCOMES_BY_STATUS: Final[Mapping[int, Outcome]] = {
    200: Outcome.DELIVERED,
    # An invalid argument may be the message or the token: it never says that the token is dead.
    400: Outcome.REJECTED,
    401: Outcome.RETRY,
    403: Outcome.FAULT,
    404: Outcome.FAULT,  # without UNREGISTERED it is the project or the endpoint that does not exist
    408: Outcome.RETRY,
    413: Outcome.REJECTED,
    429: Outcome.RETRY,
    # 500 and above: answered by something that may have passed the message on (503 that delivered was seen).
}
# Waited where the answer names no time of its own.
DEFAULT_WAIT_US: Final[Mapping[Outcome, int]] = {
    Outcome.RETRY: SECOND_US,
    Outcome.UNKNOWN: 10 * SECOND_US,
    Outcome.FAULT: FAULT_WAIT_US,
}
# Waited at least, whatever the answer says: FCM asks for a minute after its quota.
LEAST_WAIT_US: Final[Mapping[int, int]] = {429: 60 * SECOND_US}


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


def read_answer(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Read what FCM said about one message; any body is borne, JSON or not."""
    parsed = _parse(body)
    if status == OK and not isinstance(parsed.get("name"), str):
        # Some proxy's page. It may have passed the message on.
        return Answer(Outcome.UNKNOWN, status, "NoMessageName", DEFAULT_WAIT_US[Outcome.UNKNOWN])
    reason = "" if status == OK else _reason(parsed)
    outcome = OUTCOMES.get((status, reason)) or OUTCOMES_BY_STATUS.get(status)
    if outcome is None:
        # A redirect or an odd 4xx comes from a wrong address.
        outcome = Outcome.UNKNOWN if status >= SERVER_ERROR else Outcome.FAULT
    if outcome not in DEFAULT_WAIT_US:
        return Answer(outcome, status, reason)
    wait_us = retry_after_us(headers)
    if wait_us is None:
        wait_us = DEFAULT_WAIT_US[outcome]
    return Answer(outcome, status, reason, max(wait_us, LEAST_WAIT_US.get(status, 0)))


def retry_after_us(headers: Mapping[str, str]) -> int | None:
    """Read Retry-After, seconds or an HTTP date, in microseconds, at most a day; None if it says nothing."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]{1,12}", value):
        return min(int(value) * SECOND_US, LONGEST_WAIT_US)
    moment = _http_date(value)
    if moment is None:
        return None
    # The server's own clock where it says: ours may be wrong by hours.
    now = _http_date(headers.get("Date", "")) or datetime.now(UTC)
    return min(max(int((moment - now).total_seconds() * SECOND_US), 0), LONGEST_WAIT_US)


def _http_date(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parse(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _reason(parsed: Mapping[str, Any]) -> str:
    """FCM's errorCode; else the status word of Google's error form; else nothing."""
    error = parsed.get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    codes = [d.get("errorCode") for d in details if isinstance(d, dict)] if isinstance(details, list) else []
    for word in (*codes, error.get("status")):
        if isinstance(word, str) and word:
            return word[:REASON_LENGTH]
    return ""
