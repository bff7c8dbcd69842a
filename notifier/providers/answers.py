"""Read the answers of every provider in the same way, by its `Table`. Nothing in here raises.

The reason is looked up first, then the status, then its class. An answer that is in no table is UNKNOWN: the provider
may have delivered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from notifier.errors import InvalidNotificationError
from notifier.providers.contract import Answer, Outcome

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
LONGEST_WAIT_US: Final = 24 * 60 * MINUTE_US  # a server that asks for more is wrong

# A reason is one word. Any other text, such as a proxy's page, must not get into logs.
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_SECONDS: Final = re.compile(r"[0-9]{1,300}")


# How long to wait if a provider names no time, and its own answers say nothing better.
WAIT_US: Final = {
    **dict.fromkeys((Outcome.REFUSED, Outcome.BUSY, Outcome.FULL, Outcome.FAULT), MINUTE_US),
    Outcome.UNKNOWN: 10 * SECOND_US,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The answers of one provider.

    by_reason: by status and the provider's own word. by_status: if that pair is not listed. by_class: by the hundreds
        of the status (5 is every 5xx), if the status is not listed either.
    wait_us: by outcome, how long to wait if the answer names no time, in microseconds. Only these are tried again.
    least_us: by status or by class, the shortest wait, even if the answer names a shorter one, in microseconds.
    """

    by_reason: Mapping[tuple[int, str], Outcome] = field(default_factory=dict)
    by_status: Mapping[int, Outcome]
    by_class: Mapping[int, Outcome]
    wait_us: Mapping[Outcome, int]
    least_us: Mapping[int, int] = field(default_factory=dict)

    def outcome(self, status: int, reason: str) -> Outcome:
        known = self.by_reason.get((status, reason)) or self.by_status.get(status)
        return known or self.by_class.get(status // 100, Outcome.UNKNOWN)

    def read(self, status: int, reason: str, header: Callable[[str], str], outcome: Outcome | None = None) -> Answer:
        """Make the answer of a response. header: returns a header by its name in lower case; '' if it is missing.

        outcome: if given, it goes before the outcome of the table.
        """
        outcome = outcome or self.outcome(status, reason)
        wait_us = self.wait_us.get(outcome)
        if wait_us is not None:
            asked_us = retry_after_us(header("retry-after"), header("date"))
            least_us = self.least_us.get(status, self.least_us.get(status // 100, 0))
            wait_us = max(wait_us if asked_us is None else asked_us, least_us)
        return Answer(outcome, status, reason, wait_us)


def unsendable(error: InvalidNotificationError | ValueError) -> Answer:
    """Return the answer for a job that was enqueued without the producer's checks. Its reason names the field.

    A ValueError means text or a number that no request can carry. Its text may quote the message, so it is left out.
    """
    why = error if isinstance(error, InvalidNotificationError) else type(error).__name__
    return Answer(Outcome.REJECTED, reason=f"InvalidNotification: {why}")


def retry_after_us(value: str, date: str) -> int | None:
    """Read Retry-After, seconds or an HTTP date, as microseconds from now, at most a day; None if it is neither.

    date: the Date header of the response. It tells the server's own clock: ours may be wrong by hours.
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
    """Return a provider's reason; '' for anything that is not a single word."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date; one without a zone is in UTC."""
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
