"""Rates in one line of text: `5/minute; 100/day; gap 200ms; burst 20 then 1/3m`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from notifier.rules.calendar_windows import CalendarWindow, parse_calendar_window
from notifier.rules.kinds.burst import Burst
from notifier.rules.kinds.gap import Gap
from notifier.rules.kinds.window import Window, parse_window
from notifier.rules.policy import Policy
from notifier.units import LARGEST_LIMIT, SHORTEST_INTERVAL_US, UNITS, parse_duration, shown

Rule: TypeAlias = Window | CalendarWindow | Burst | Gap

RATES_FORM: Final = "write for example '5/minute; 100/day; gap 200ms; burst 20 then 1/3m'"
LONGEST_REFILL_US: Final = 3_650_000 * UNITS["d"]  # it goes to Redis as 64 bits
_PER: Final = re.compile(r"\s+per\s+")
_FAMILIAR: Final = {"sec": "s", "min": "m", "hr": "h"}  # units as other limiters write them
_LAST_WORD: Final = re.compile(rf"(?<![a-z])({'|'.join(_FAMILIAR)})s?$")
_CALENDAR: Final = re.compile(r"\s*/\s*(?:calendar\s+|(?:1\s*)?(?=month$))")  # a month is always a calendar month
_OF_CALENDAR: Final = ("month", "calendar-day", "calendar-week")
_BURST: Final = re.compile(r"burst\s+([0-9]{1,15})\s+then\s+(1/.+)")


@lru_cache(maxsize=1024)
def parse_rates(text: str) -> Policy:
    """Return the policy in a text of windows, a gap and a burst, with semicolons or commas between them."""
    rules = rules_in_text(text)
    if not rules:
        raise ValueError(f"{shown(text)} holds no rate; {RATES_FORM}")
    return together(rules)


def rules_in_text(text: str) -> list[Rule]:
    return [_part(" ".join(part.split())) for part in re.split(r"[;,]", text) if part.strip()]


def together(rules: Sequence[Rule]) -> Policy:
    windows = tuple(rule for rule in rules if isinstance(rule, Window | CalendarWindow))
    bursts = [rule for rule in rules if isinstance(rule, Burst)]
    gaps = [rule for rule in rules if isinstance(rule, Gap)]
    if len(bursts) > 1 or len(gaps) > 1:
        raise ValueError("rates hold one gap and one burst at most; of two the stricter would do")
    return Policy().replaced(windows, gap_us=gaps[0].us if gaps else 0, burst=bursts[0] if bursts else None)


def _part(text: str) -> Rule:
    text = _LAST_WORD.sub(lambda unit: _FAMILIAR[unit[1]], text)
    if text.startswith("gap "):
        return Gap(parse_duration(text[4:], least_us=SHORTEST_INTERVAL_US))
    if text.startswith("burst"):
        match = _BURST.fullmatch(text)
        if match is None:
            raise ValueError(f"{shown(text)} is not a burst; write 'burst 20 then 1/3m'")
        burst = Burst(int(match[1]), every_us=parse_window(match[2]).interval_us)
        if burst.limit * burst.every_us > LONGEST_REFILL_US:
            raise ValueError(f"{shown(text)} takes over 10,000 years to refill")
        return burst
    if text.count("/") > 1:
        raise ValueError(f"{shown(text)} is more than one rate; write a semicolon between two: '5/minute; 100/day'")
    text = _PER.sub("/", text, count=1)
    return parse_calendar_window(_CALENDAR.sub("/calendar-", text), LARGEST_LIMIT) or parse_window(text, *_OF_CALENDAR)
