"""What goes by the clock on the wall, by zoneinfo: whether one may go at a moment, and whether what was sent might."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import Hours
from notifier.rules.policy import Policy
from notifier.rules.quiet_hours import pace_us

QUARTER = 15 * 60_000_000  # the rules here begin and end at whole quarters, and so do the changes of the clocks


@cache
def reads(name: str, quarter: int) -> datetime:
    """What the clock reads as a quarter of an hour begins."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=quarter * QUARTER)).astimezone(ZoneInfo(name))


@cache
def _contains(name: str, hours: Hours, quarter: int) -> bool:
    at = reads(name, quarter)
    wall, today, yesterday = (at.hour * 60 + at.minute) * 60_000_000, at.weekday(), (at.weekday() - 1) % 7
    if hours.from_us < hours.to_us:
        return today in hours.days and hours.from_us <= wall < hours.to_us
    return (today in hours.days and wall >= hours.from_us) or (yesterday in hours.days and wall < hours.to_us)


def is_quiet(name: str, policy: Policy, us: int) -> bool:
    """Whether the clock reads a time within the quiet hours of a policy, or outside of its send hours."""
    quarter = us // QUARTER
    if any(_contains(name, hours, quarter) for hours in policy.quiet):
        return True
    return bool(policy.send) and not any(_contains(name, hours, quarter) for hours in policy.send)


@cache
def period(name: str, unit: str, quarter: int) -> tuple[int, ...]:
    """What all the moments of one day, ISO week or month have in common."""
    day = reads(name, quarter).date()
    return {"day": (day.toordinal(),), "week": day.isocalendar()[:2], "month": (day.year, day.month)}[unit]


@dataclass(frozen=True, slots=True)
class Clock:
    """The head of a backlog and its rules: its zone, when it came, whose quiet and send hours hold, what was sent."""

    zone: str
    since_us: int
    quiet: Sequence[Policy]
    scopes: Sequence[tuple[Policy, Sequence[int]]]
    lead_us: int

    def admits(self, t: int) -> bool:
        """Whether these rules let it go at `t`."""
        moments = [t, *range(t // QUARTER * QUARTER + QUARTER, t + self.lead_us, QUARTER)]
        if any(is_quiet(self.zone, policy, at) for policy in self.quiet for at in moments):
            return False
        return self._keeps_calendars(t) and (not self._waited(t) or self._keeps_pace(t))

    def _keeps_calendars(self, t: int) -> bool:
        for policy, sends in self.scopes:
            for window in policy.calendar:
                # What is in flight may be received on any of the days until its lease ends.
                days = [period(self.zone, window.unit, at // QUARTER) for at in sends]
                if sum(day >= period(self.zone, window.unit, t // QUARTER) for day in days) >= window.limit:
                    return False
        return True

    def _waited(self, t: int) -> bool:
        moments = [self.since_us, *range(self.since_us // QUARTER * QUARTER + QUARTER, t, QUARTER)]
        return any(is_quiet(self.zone, policy, at) for policy in self.quiet for at in moments if at < t)

    def _keeps_pace(self, t: int) -> bool:
        return all(t - at >= pace_us(policy) for policy, sends in self.scopes for at in sends)


def unquiet(name: str, policy: Policy, times: Iterable[int]) -> list[int]:
    """The receipts within the quiet hours, or outside of the send hours; the law says that there is none."""
    return [at for at in times if is_quiet(name, policy, at)]


def over_calendar(name: str, windows: Iterable[CalendarWindow], times: Iterable[int]) -> list[str]:
    """The days, weeks and months with more receipts than a calendar window admits; the law says that there is none."""
    return [
        f"{window} in {day}"
        for window in windows
        for day, received in Counter(period(name, window.unit, at // QUARTER) for at in times).items()
        if received > window.limit
    ]
