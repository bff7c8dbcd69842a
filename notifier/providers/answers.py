"""The meaning of an answer: one shape of table for every provider, and one way to read it. Nothing in here raises.

A provider's rules stand in its `Table` (`apns_answers`, `fcm_answers`, …); a reason is looked for first, then the
status, then its class, and what nobody knows may have delivered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from notifier.errors import InvalidNotificationError
from notifier.providers.contract import Answer, Outcome

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
LONGEST_WAIT_US: Final = 24 * 60 * MINUTE_US  # more is taken for an error of the server

# A reason is one word. Whatever else stands there, such as a proxy's page, is not repeated into logs.
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_SECONDS: Final = re.compile(r"[0-9]{1,300}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The answers of one provider.

    by_reason: by status and the provider's own word. by_status: where that pair is not listed. by_class: by the
        status's hundreds (5 is every 5xx), where that is not listed either.
    wait_us: by outcome, how long to wait where the answer names no time, in microseconds. Only these are tried again.
    least_us: by status or by class, how long to wait at least, whatever the answer says, in microseconds.
    """

    by_reason: Mapping[tuple[int, str], Outcome]
    by_status: Mapping[int, Outcome]
    by_class: Mapping[int, Outcome]
    wait_us: Mapping[Outcome, int]
    least_us: Mapping[int, int]

    def outcome(self, status: int, reason: str) -> Outcome:
        known = self.by_reason.get((status, reason)) or self.by_status.get(status)
        return known or self.by_class.get(status // 100, Outcome.UNKNOWN)

    def read(self, status: int, reason: str, header: Callable[[str], str], outcome: Outcome | None = None) -> Answer:
        """Return the answer that this is. header: a header of the response by its name in lower case, else empty.

        outcome: what it means whatever its status and its reason are.
        """
        outcome = outcome or self.outcome(status, reason)
        wait_us = self.wait_us.get(outcome)
        if wait_us is not None:
            asked_us = retry_after_us(header("retry-after"), header("date"))
            least_us = self.least_us.get(status, self.least_us.get(status // 100, 0))
            wait_us = max(wait_us if asked_us is None else asked_us, least_us)
        return Answer(outcome, status or None, reason, wait_us)


def unsendable(error: InvalidNotificationError | ValueError) -> Answer:
    """Return the answer for a job that was written past the producer's checks: its reason names the field.

    A ValueError is about text or a number that no request can carry. What it says may quote the message.
    """
    why = error if isinstance(error, InvalidNotificationError) else type(error).__name__
    return Answer(Outcome.REJECTED, reason=f"InvalidNotification: {why}")


def retry_after_us(value: str, date: str) -> int | None:
    """Read Retry-After, seconds or an HTTP date, in microseconds from now, at most a day; None if it says nothing.

    date: the header of the same response. A date is read by the server's own clock: ours may be wrong by hours.
    """
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return int(min(float(value) * SECOND_US, LONGEST_WAIT_US))
    until = _moment(value)
    if until is None:
        return None
    now = _moment(date)
    left_us = int((until - (time.time() if now is None else now)) * SECOND_US)
    return min(max(left_us, 0), LONGEST_WAIT_US)


def word(value: object) -> str:
    """Return a provider's reason if it is one; empty for whatever is no single word."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date; one without a zone is in UTC."""
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
