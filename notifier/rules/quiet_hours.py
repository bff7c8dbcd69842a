"""Rules by the user's local time: when quiet hours, send hours and calendar windows let a notification go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import DAYS, WEEK_US, Closed, reading
from notifier.rules.kinds.kind import RuleOfSends
from notifier.rules.policies import Rules
from notifier.rules.policy import Policy
from notifier.rules.preferences import Mute
from notifier.rules.zones import DAY_US, THURSDAY_US, Zone

Latest: TypeAlias = Callable[[int], int | None]  # µs of the n-th latest send, from 1; None if there are fewer
Scope: TypeAlias = Literal["user", "category"]
Rule: TypeAlias = "RuleOfSends | Mute | Closed | CalendarWindow | str"  # or a text, such as PACE
Decider: TypeAlias = "tuple[Scope, Rule]"  # whose rule it is, and which
PACE: Final = "pace after quiet hours"


def pace_us(policy: Policy) -> int:
    """The µs between two notifications that waited through quiet hours, by the shortest window and the gap."""
    shortest, pace = None, 0
    windows = [(window.interval_us, window.limit) for window in policy.windows]
    windows += [(window.span_us, window.limit) for window in policy.calendar]
    for interval_us, limit in windows:
        if shortest is None or interval_us < shortest:
            shortest, pace = interval_us, -(-interval_us // limit)
    return max(pace, policy.gap_us)


@dataclass(frozen=True, slots=True)
class ByClock:
    """A notification under these rules. `by_the_clock` in `quiet_hours.lua` does the same.

    since_us: when the notification entered its backlog. lead_us: how long before quiet hours it must go, because the
    provider may receive it so much later. of_user, of_category: find the sends that the two policies count.
    """

    rules: Rules
    zone: Zone
    since_us: int
    lead_us: int
    of_user: Latest
    of_category: Latest

    def first_open(self, at_us: int) -> tuple[int, Decider | None]:
        """The first µs from `at_us` on at which it may go, and the last rule that delayed it; None if no rule did."""
        at_us, by = self._by_calendar(at_us)
        quiet = list(self._quiet())
        for _ in range(2 + 8 * len(quiet) if quiet else 0):  # on each day, hours may begin when others end
            opens, moved = self._after_quiet(quiet, at_us)
            if opens == at_us:
                break
            at_us, by = opens, moved
        return at_us, by

    def _by_calendar(self, at_us: int) -> tuple[int, Decider | None]:
        by: Decider | None = None
        for scope, policy, latest in self._scopes():
            for window in policy.calendar:
                # One more may go in the day, week or month after that of the limit-th latest send.
                nth = latest(max(1, window.limit - self.rules.category.cost + 1))
                start = 0 if nth is None else self.zone.next_start(window.unit, nth)
                if start > at_us:
                    at_us, by = start, (scope, window)
        return at_us, by

    def _after_quiet(self, quiet: list[tuple[Scope, Closed]], at_us: int) -> tuple[int, Decider | None]:
        by: Decider | None = None
        for scope, hours in quiet:
            if (ends := self.after(hours, at_us)) > at_us:
                at_us, by = ends, (scope, hours)
        if any(self._begins(hours, self.since_us) < at_us for _, hours in quiet):
            for scope, policy, latest in self._scopes():
                last = latest(1)
                if last is not None and last + pace_us(policy) > at_us:
                    at_us, by = last + pace_us(policy), (scope, PACE)
        return at_us, by

    def _scopes(self) -> tuple[tuple[Scope, Policy, Latest], ...]:
        category = self.rules.category.policy
        return ("user", self.rules.user, self.of_user), ("category", category, self.of_category)

    def _quiet(self) -> Iterator[tuple[Scope, Closed]]:
        if not self.rules.category.ignores_quiet:
            yield from (("user", hours) for hours in self.rules.user.closed)
        yield from (("category", hours) for hours in self.rules.category.policy.closed)

    def after(self, hours: Closed, at_us: int) -> int:
        """The first µs from `at_us` on at which these hours alone let it go."""
        begins = self._begins(hours, at_us)
        return self._ends(hours, begins) if begins < at_us + self.lead_us else at_us

    def _begins(self, hours: Closed, at_us: int) -> int:
        return self.zone.first_outside(hours.to_us, hours.from_us, at_us, hours.every_us)

    def _ends(self, hours: Closed, at_us: int) -> int:
        return self.zone.first_outside(hours.from_us, hours.to_us, at_us, hours.every_us)


def said(by: Decider, category: str, at_us: int = 0, zone: Zone | None = None) -> str:
    """Describe the deciding rule: 'user 10/1m', 'chat gap 1.5s', 'user quiet until 08:00 Europe/Berlin'.

    at_us: until when it decides. zone: the user's.
    """
    scope, rule = by
    whose = category if scope == "category" else "user"
    if isinstance(rule, Mute):
        return f"{whose} muted"
    if zone is None or not isinstance(rule, Closed | CalendarWindow):
        return f"{whose} {rule}"
    wall = zone.wall_us(at_us) + THURSDAY_US
    until = f"{reading(wall % DAY_US)} {zone.name}"
    if isinstance(rule, CalendarWindow):
        return f"{whose} {rule} until {until}"
    day = f"{DAYS[wall % WEEK_US // DAY_US]} " if rule.every_us == WEEK_US else ""
    return f"{whose} quiet until {day}{until}"
