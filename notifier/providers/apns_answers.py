"""What Apple's answers mean, as tables: status and reason to an Answer. Unknown ones never raise."""

from __future__ import annotations

import json
import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from notifier.providers.contract import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

SECOND_US: Final = 1_000_000
THROTTLED_US: Final = 60 * SECOND_US
FAULT_US: Final = 60 * SECOND_US
SERVER_ERROR_US: Final = 15 * 60 * SECOND_US  # Apple: after a 5xx, retry after 15 minutes
LONGEST_RETRY_AFTER_US: Final = 24 * 3600 * SECOND_US  # more is taken for an error of the server
REASON_CHARACTERS: Final = 64

DEAD_TOKEN: Final = frozenset({(410, "Unregistered"), (410, "ExpiredToken")})
RETRY: Final = frozenset({(429, "TooManyRequests"), (400, "IdleTimeout")})
FAULT: Final = frozenset(
    {
        (400, "BadTopic"),
        (400, "MissingTopic"),
        (400, "TopicDisallowed"),
        (403, "BadCertificate"),
        (403, "BadCertificateEnvironment"),
        (403, "BadEnvironmentKeyIdInToken"),
        (403, "ExpiredProviderToken"),
        (403, "InvalidProviderToken"),
        (403, "MissingProviderToken"),
        (403, "UnrelatedKeyIdInToken"),
        (429, "TooManyProviderTokenUpdates"),
    }
)
# What is in no table above, by status, then by class. A redirect is somebody's proxy: nothing reached Apple.
BY_STATUS: Final = {200: Outcome.DELIVERED, 429: Outcome.RETRY}
BY_CLASS: Final = {3: Outcome.FAULT, 4: Outcome.REJECTED}  # the rest, and 5xx above all, may have delivered

WAIT_US: Final = {Outcome.RETRY: THROTTLED_US, Outcome.FAULT: FAULT_US, Outcome.UNKNOWN: SERVER_ERROR_US}
# A reason is one word. Whatever else stands there, such as a proxy's page, is not repeated into logs.
_WORD: Final = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{REASON_CHARACTERS - 1}}}")


def read(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Answer:
    """Return what this response means; retry_after_us is set for RETRY, FAULT and UNKNOWN."""
    reason = read_reason(body)
    outcome = _outcome(status, reason)
    wait_us = WAIT_US.get(outcome)
    if wait_us is not None:
        asked_us = read_retry_after(headers)
        if asked_us is not None:
            wait_us = max(asked_us, wait_us) if outcome is Outcome.UNKNOWN else asked_us
    return Answer(outcome, status or None, reason, wait_us)


def _outcome(status: int, reason: str) -> Outcome:
    key = (status, reason)
    if key in DEAD_TOKEN:
        return Outcome.DEAD_TOKEN
    if key in FAULT:
        return Outcome.FAULT
    if key in RETRY:
        return Outcome.RETRY
    return BY_STATUS.get(status) or BY_CLASS.get(status // 100, Outcome.UNKNOWN)


def read_reason(body: bytes) -> str:
    """Return Apple's one word out of ``{"reason": …}``; empty if there is none."""
    if not body:
        return ""
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return reason if isinstance(reason, str) and _WORD.fullmatch(reason) else ""


def read_retry_after(headers: Mapping[bytes, bytes]) -> int | None:
    """Return Retry-After in microseconds from now, from either of its forms; None if absent or senseless."""
    text = headers.get(b"retry-after", b"").decode("latin-1").strip()
    if text.isascii() and text.isdigit() and len(text) <= len(str(LONGEST_RETRY_AFTER_US)):
        return min(int(text) * SECOND_US, LONGEST_RETRY_AFTER_US)
    until = _date(text)
    if until is None:
        return None
    # By the server's own clock where it tells the time: ours may be wrong by hours.
    now = _date(headers.get(b"date", b"").decode("latin-1"))
    left_us = int((until - (time.time() if now is None else now)) * SECOND_US)
    return min(max(left_us, 0), LONGEST_RETRY_AFTER_US)


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
