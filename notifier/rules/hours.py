"""Quiet hours and send hours as values: their text form, and the local times at which nothing is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

from notifier.units import UNITS, shown

DAY_US: Final = UNITS["d"]
WEEK_US: Final = 7 * DAY_US
MINUTE_US: Final = UNITS["m"]
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY: Final = tuple(range(7))
MAX_HOURS: Final = 28  # four on each day of a week
_DAY: Final = "|".join(DAYS)
DAYS_FORM: Final = rf"\s*({_DAY})(?:\s*-\s*({_DAY}))?\s*"
TIMES_FORM: Final = r"\s*([01][0-9]|2[0-3]):([0-5][0-9])\s*-\s*(?:([01][0-9]|2[0-3]):([0-5][0-9])|24:00)\s*"
_ONE_FORM: Final = rf"({DAYS_FORM}\s)?{TIMES_FORM}"
HOURS_FORM: Final = rf"{_ONE_FORM}(,{_ONE_FORM})*"
_DAYS: Final = re.compile(DAYS_FORM)
_HOURS: Final = re.compile(rf"(?:(?P<days>\s*[a-z]+(?:\s*-\s*[a-z]+)?)\s+)?{TIMES_FORM}")
_WEEK: Final = WEEK_US // MINUTE_US
_ALL_CLOSED: Final = (1 << _WEEK) - 1  # one bit a minute, from Monday's midnight on


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours from one local time until another, in µs since midnight; both are whole minutes.

    If `to_us` is not the later one, they end on the next day. days: consecutive days on which they begin; 0 is Monday.
    """

    from_us: int
    to_us: int
    days: tuple[int, ...] = EVERY_DAY

    def __str__(self) -> str:
        times = f"{reading(self.from_us)}-{reading(self.to_us)}"
        if self.days == EVERY_DAY:
            return times
        first, last = DAYS[self.days[0]], DAYS[self.days[-1]]
        return f"{first} {times}" if first == last else f"{first}-{last} {times}"

    @property
    def minutes(self) -> int:
        """The minutes of a week that they contain, one bit each."""
        length = ((self.to_us - self.from_us - 1) % DAY_US + 1) // MINUTE_US
        found = 0
        for day in self.days:
            bits = ((1 << length) - 1) << (day * DAY_US + self.from_us) // MINUTE_US
            found |= bits & _ALL_CLOSED | bits >> _WEEK
        return found


@dataclass(frozen=True, slots=True)
class Closed:
    """A span of local time in which nothing is sent, in µs since midnight, or since Monday's midnight.

    every_us: a day or a week. If `from_us` is the later one, the span continues over the end of the day or week.
    """

    from_us: int
    to_us: int
    every_us: int = DAY_US


@lru_cache(maxsize=4096)
def closed_minutes(quiet: tuple[Hours, ...], send: tuple[Hours, ...]) -> int:
    """The minutes of a week, one bit each, that are quiet, or outside of the send hours, if there are any."""
    found = 0
    for hours in quiet:
        found |= hours.minutes
    return found | _ALL_CLOSED & ~closed_minutes(send, ()) if send else found


@lru_cache(maxsize=4096)
def closed_times(minutes: int) -> tuple[Closed, ...]:
    """Join these minutes of a week into spans that do not touch; into spans of a day, if all days are alike."""
    day = _WEEK // 7
    of_a_day = minutes & ((1 << day) - 1)
    alike = minutes == sum(of_a_day << n * day for n in EVERY_DAY)
    length = day if alike else _WEEK
    runs, at = [], 0
    for bit, run in groupby(f"{of_a_day if alike else minutes:0{length}b}"[::-1]):
        begins, at = at, at + len(list(run))
        if bit == "1":
            runs.append((begins, at))
    if len(runs) > 1 and runs[0][0] == 0 and runs[-1][1] == length:  # a span continues over the end
        runs = [*runs[1:-1], (runs[-1][0], runs[0][1])]
    return tuple(Closed(a * MINUTE_US, b % length * MINUTE_US, length * MINUTE_US) for a, b in runs)


@lru_cache(maxsize=4096)
def longest_open_us(minutes: int) -> int:
    """The longest time of a week without any of these minutes, in microseconds."""
    twice = f"{minutes:0{_WEEK}b}" * 2
    return min(max(map(len, twice.split("1"))), _WEEK) * MINUTE_US


def parse_hours(value: Any, what: str = "quiet hours") -> tuple[Hours, ...]:
    """Return the hours in `21:00-08:00`, `mon-fri 09:00-18:00, sat 10:00-14:00`, a list of these, or {days: hours}.

    Raises ValueError, saying what would be right, for another form.
    """
    found = tuple(_each(value, what))
    if not found:
        raise ValueError('are none; give at least one, such as "21:00-08:00"')
    if len(found) > MAX_HOURS:
        raise ValueError(f"are {len(found)}; at most {MAX_HOURS} are allowed")
    if what == "quiet hours" and not longest_open_us(closed_minutes(found, ())):
        raise ValueError(f"{shown(text_of(found))}: nothing would ever be sent; leave a part of the week")
    return found


def text_of(hours: Iterable[Hours]) -> str:
    """Write hours as `parse_hours` reads them."""
    return ", ".join(map(str, hours))


def _each(value: Any, what: str, days: tuple[int, ...] | None = None) -> Iterable[Hours]:
    if isinstance(value, Hours):
        yield value
    elif isinstance(value, str):
        for part in value.split(","):
            yield _one(part, what, days)
    elif isinstance(value, Mapping) and days is None:
        for name, times in value.items():
            yield from _each(times, what, _days(name))
    elif isinstance(value, list | tuple):
        for each in value:
            if isinstance(each, list | tuple | Mapping):
                raise ValueError("a list of hours contains text alone")  # noqa: TRY004 - as for all that is not well formed
            yield from _each(each, what, days)
    else:
        # YAML 1.1 reads 21:00 alone as a number.
        raise ValueError('must be text such as "21:00-08:00", a list of it, or text by day')


def _one(text: str, what: str, days: tuple[int, ...] | None) -> Hours:
    match = _HOURS.fullmatch(" ".join(text.split()))  # so that many spaces cost the pattern no time
    if match is None or (match["days"] and days is not None):
        example = "21:00-08:00" if what == "quiet hours" else "09:00-18:00"
        right = f"such as {example}" + ("" if days is not None else f" or sat-sun {example}")
        raise ValueError(f"{shown(text)} are no {what}; write from when until when, {right}")
    hours, minutes, to_hours, to_minutes = (int(match[n] or 0) for n in range(2, 6))
    from_us, to_us = hours * UNITS["h"] + minutes * MINUTE_US, to_hours * UNITS["h"] + to_minutes * MINUTE_US
    if match[4] is None:
        to_us = DAY_US
    if from_us == to_us:
        raise ValueError(f"{shown(text)}: begins when it ends; a whole day is 00:00-24:00")
    return Hours(from_us, to_us, _days(match["days"]) if match["days"] else days or EVERY_DAY)


def _days(name: Any) -> tuple[int, ...]:
    match = _DAYS.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(f"{shown(str(name))} is no day; write one of {', '.join(DAYS)}, or two, such as mon-fri")
    first = DAYS.index(match[1])
    more = (DAYS.index(match[2] or match[1]) - first) % 7
    days = tuple((first + n) % 7 for n in range(more + 1))
    return EVERY_DAY if len(days) == len(EVERY_DAY) else days


def reading(us: int) -> str:
    """Return the clock's reading at `us` after midnight, such as 08:00."""
    return f"{us // UNITS['h']:02}:{us % UNITS['h'] // MINUTE_US:02}"
