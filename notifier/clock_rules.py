"""Rules that go by the clock on the user's wall: quiet hours and calendar windows, and when they let something go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from notifier.units import UNITS, shown
from notifier.zones import Unit, Zone

if TYPE_CHECKING:
    from notifier.policies import Rules
    from notifier.policy import Policy

LARGEST_CALENDAR_LIMIT: Final = 1_000  # each send is kept as itself for as long as the window may be
SPANS: Final = {"day": UNITS["d"], "week": 7 * UNITS["d"], "month": 31 * UNITS["d"]}
CHANGES_US: Final = 2 * UNITS["h"]  # by so much clocks that change can make them longer
ROUNDS: Final = 4  # from one quiet hours' end into others': for two days, then it is looked at again

_TIME: Final = r"([01][0-9]|2[0-3]):([0-5][0-9])"
QUIET_FORM: Final = rf"\s*{_TIME}\s*-\s*{_TIME}\s*"
_QUIET: Final = re.compile(QUIET_FORM)
CALENDAR_FORM: Final = rf"\s*([0-9]{{1,15}})\s*/\s*calendar-({'|'.join(SPANS)})\s*"
_CALENDAR: Final = re.compile(CALENDAR_FORM)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From one reading of the clock until another, in µs since midnight; over midnight where the first is later."""

    from_us: int
    to_us: int

    def __str__(self) -> str:
        return f"{_reading(self.from_us)}-{_reading(self.to_us)}"


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """At most `limit` sends in any one day, ISO week (from Monday on) or month of the user's."""

    limit: int
    unit: Unit

    @property
    def span_us(self) -> int:
        """How long it is, in microseconds; of a month, the longest."""
        return SPANS[self.unit]

    @property
    def horizon_us(self) -> int:
        """How long a send may count, in microseconds."""
        return self.span_us + CHANGES_US

    def __str__(self) -> str:
        return f"{self.limit}/calendar-{self.unit}"


Latest: TypeAlias = Callable[[int], int | None]  # µs of the n-th latest send, from 1; None where there are fewer
Scope: TypeAlias = Literal["user", "category"]
# Whose rule it is, and which; None is the pace after quiet hours.
Decider: TypeAlias = tuple[Scope, QuietHours | CalendarWindow | None]


def parse_quiet_hours(text: str) -> QuietHours:
    """Return the hours in `21:00-08:00`; raise ValueError, saying what would be right, for another form."""
    match = _QUIET.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} are no quiet hours; write from when until when, such as 21:00-08:00")
    hours, minutes, to_hours, to_minutes = map(int, match.groups())
    quiet = QuietHours(*(h * UNITS["h"] + m * UNITS["m"] for h, m in ((hours, minutes), (to_hours, to_minutes))))
    if quiet.from_us == quiet.to_us:
        raise ValueError(f"{shown(text)}: begins when it ends, so nothing would ever be sent; leave some of the day")
    return quiet


def parse_calendar_window(text: str) -> CalendarWindow | None:
    """Return the window in `3/calendar-day`, or None where it is none; raise ValueError for a limit out of bounds."""
    match = _CALENDAR.fullmatch(text)
    if match is None:
        if "calendar" in text:
            units = ", ".join(f"calendar-{unit}" for unit in get_args(Unit))
            raise ValueError(f"{shown(text)} is not a rate; write a limit and one of {units}, such as 3/calendar-day")
        return None
    limit = int(match[1])
    if not 1 <= limit <= LARGEST_CALENDAR_LIMIT:
        raise ValueError(f"{shown(text)}: the limit of a calendar window must be from 1 to {LARGEST_CALENDAR_LIMIT}")
    return CalendarWindow(limit, cast("Unit", match[2]))


def pace_us(policy: Policy) -> int:
    """The µs between two of those that waited through quiet hours: what the shortest window admits, and the gap."""
    shortest, pace = None, 0
    windows = [(window.interval_us, window.limit) for window in policy.windows]
    windows += [(window.span_us, window.limit) for window in policy.calendar]
    for interval_us, limit in windows:
        if shortest is None or interval_us < shortest:
            shortest, pace = interval_us, -(-interval_us // limit)
    return max(pace, policy.gap_us)


@dataclass(frozen=True, slots=True)
class ByClock:
    """A notification under these rules. `by_the_clock` in `_zones.lua` does the same.

    since_us: when it was accepted. lead_us: how long after it is let go it may be received: quiet hours begin later.
    of_user, of_category: the sends that the two policies judge.
    """

    rules: Rules
    zone: Zone
    since_us: int
    lead_us: int
    of_user: Latest
    of_category: Latest

    def first_open(self, at_us: int) -> tuple[int, Decider | None]:
        """The first µs from `at_us` on at which it may go, and the last rule that moved it; None where none did."""
        at_us, by = self._by_calendar(at_us)
        quiet = list(self._quiet())
        for _ in range(ROUNDS if quiet else 0):
            opens, moved = self._after_quiet(quiet, at_us)
            if opens == at_us:
                break
            at_us, by = opens, moved
        return at_us, by

    def _by_calendar(self, at_us: int) -> tuple[int, Decider | None]:
        by: Decider | None = None
        for scope, policy, latest in self._scopes():
            for window in policy.calendar:
                # One more fits into the day after the one of the limit-th latest.
                nth = latest(max(1, window.limit - self.rules.category.cost + 1))
                start = 0 if nth is None else self.zone.next_start(window.unit, nth)
                if start > at_us:
                    at_us, by = start, (scope, window)
        return at_us, by

    def _after_quiet(self, quiet: list[tuple[Scope, QuietHours]], at_us: int) -> tuple[int, Decider | None]:
        by: Decider | None = None
        for scope, hours in quiet:
            begins = self._begins(hours, at_us)
            if begins < at_us + self.lead_us:
                at_us, by = self.zone.first_outside(hours.from_us, hours.to_us, begins), (scope, hours)
        if any(self._begins(hours, self.since_us) < at_us for _, hours in quiet):
            for scope, policy, latest in self._scopes():
                last = latest(1)
                if last is not None and last + pace_us(policy) > at_us:
                    at_us, by = last + pace_us(policy), (scope, None)
        return at_us, by

    def _scopes(self) -> tuple[tuple[Scope, Policy, Latest], ...]:
        category = self.rules.category.policy
        return ("user", self.rules.user, self.of_user), ("category", category, self.of_category)

    def _quiet(self) -> Iterator[tuple[Scope, QuietHours]]:
        if self.rules.user.quiet is not None and not self.rules.category.ignores_quiet:
            yield "user", self.rules.user.quiet
        if self.rules.category.policy.quiet is not None:
            yield "category", self.rules.category.policy.quiet

    def _begins(self, hours: QuietHours, at_us: int) -> int:
        return self.zone.first_outside(hours.to_us, hours.from_us, at_us)


def said(by: Decider, category: str, at_us: int, zone: Zone) -> str:
    """What decides, for people: 'user quiet until 08:00 Europe/Berlin'. at_us: until when."""
    scope, rule = by
    whose = category if scope == "category" else "user"
    if rule is None:
        return f"{whose} pace after quiet hours"
    until = f"until {_reading(zone.wall_us(at_us) % UNITS['d'])} {zone.name}"
    return f"{whose} quiet {until}" if isinstance(rule, QuietHours) else f"{whose} {rule} {until}"


def free_us(*quiet: QuietHours) -> int:
    """How much of a day none of these quiet hours take."""
    minutes = range(0, UNITS["d"], UNITS["m"])
    spans = [(hours.from_us, (hours.to_us - hours.from_us) % UNITS["d"]) for hours in quiet]
    free = [at for at in minutes if all((at - begins) % UNITS["d"] >= lasts for begins, lasts in spans)]
    return len(free) * UNITS["m"]


def _reading(us: int) -> str:
    return f"{us // UNITS['h']:02}:{us % UNITS['h'] // UNITS['m']:02}"
