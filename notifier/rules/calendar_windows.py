"""Calendar windows as values, and their text form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast, get_args

from notifier.rules.zones import Unit
from notifier.units import UNITS, checked_limit, shown

LARGEST_CALENDAR_LIMIT: Final = 1_000  # each send is kept by itself for the whole window
SPANS: Final = {"day": UNITS["d"], "week": 7 * UNITS["d"], "month": 31 * UNITS["d"]}
CHANGES_US: Final = 2 * UNITS["h"]  # a change of the clocks makes a window longer by at most this
CALENDAR_FORM: Final = rf"\s*([0-9]{{1,15}})\s*/\s*calendar-({'|'.join(SPANS)})\s*"
_CALENDAR: Final = re.compile(CALENDAR_FORM)


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """At most `limit` sends in a day, an ISO week (from Monday on) or a month, in the user's local time."""

    limit: int
    unit: Unit

    def __post_init__(self) -> None:
        checked_limit(self.limit)
        if self.unit not in SPANS:
            raise ValueError(f"a unit is one of {', '.join(SPANS)}, not {self.unit!r}")

    @property
    def max_cost(self) -> int:
        return self.limit

    @property
    def span_us(self) -> int:
        """The length in microseconds; for a month, the longest."""
        return SPANS[self.unit]

    @property
    def horizon_us(self) -> int:
        return self.span_us + CHANGES_US

    def __str__(self) -> str:
        return f"{self.limit}/calendar-{self.unit}"


def parse_calendar_window(text: str, most: int = LARGEST_CALENDAR_LIMIT) -> CalendarWindow | None:
    """Return the window in `3/calendar-day`, or None for another rate; raise ValueError for a wrong calendar window."""
    match = _CALENDAR.fullmatch(text)
    if match is None:
        if "calendar" in text or "month" in text:
            units = ", ".join(f"calendar-{unit}" for unit in get_args(Unit))
            raise ValueError(f"{shown(text)} is not a rate; write a limit and one of {units}, such as 3/calendar-day")
        return None
    limit = int(match[1])
    if not 1 <= limit <= most:
        raise ValueError(f"{shown(text)}: the limit of a calendar window must be from 1 to {most}")
    return CalendarWindow(limit, cast("Unit", match[2]))
