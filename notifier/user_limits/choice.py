"""A user's preferences, as `acquire` takes them: the rules that follow, and what depends on the user's local time.

Redis owns the time and knows no zones here: it is told the quiet spans of the days around a moment, and answers `Stale`
where that was the wrong moment, or where the user has chosen something else meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import DAY_US, WEEK_US, Closed
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import NO_RULES, Policy
from notifier.rules.quiet_hours import said
from notifier.rules.zones import Zone, zone_or
from notifier.scripts.rule_table import decoded

Span = tuple[int, int]  # from, until, in µs since the epoch
MAX_PEOPLE: Final = 10_000  # whose choices a producer keeps in memory


class People:
    """The preferences of the users that were met last: texts as they stand in Redis, by user."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def get(self, user: str) -> str:
        """Return what stood there when it was noted last; '' where nothing did."""
        return self._texts.get(user, "")

    def note(self, user: str, text: str) -> None:
        """Keep what stands there now; '' is nothing."""
        self._texts.pop(user, None)
        if text:
            if len(self._texts) >= MAX_PEOPLE:
                del self._texts[next(iter(self._texts))]
            self._texts[user] = text


class Stale(NamedTuple):
    """A user does not have these preferences, or no longer: the text that stands in Redis, and Redis's time in µs."""

    text: str
    now_us: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The preferences that hold for one user and category. text: as it stands in Redis, '' for nothing.

    muted_us: until when it is muted, 0 where it is not. own: the hours and calendar windows of the user's own choice.
    now_us: the moment around which it tells of them.
    """

    rules: Rules
    text: str = ""
    muted_us: int = 0
    own: Policy = NO_RULES
    zone: Zone | None = field(default=None, repr=False)
    now_us: int = 0

    @classmethod
    def of(cls, policies: Policies, user: str, category: str, text: str, now_us: int) -> Choice:
        """Build a choice from a text. Quiet hours and calendar windows of the configuration are not among it."""
        rules = policies.rules(user, category)
        if not text or rules.category.bypass:
            return cls(rules.without_local_time, text)
        chosen = policies.chosen(user, decoded(text))
        own = policies.combining.chosen(rules.user.without_local_time, decoded(text)).policy
        muted = [mute.until_us for mute in chosen.mutes if mute.categories is None or category in mute.categories]
        made = Rules(chosen.policy, rules.category).without_local_time
        if not own.uses_local_time:
            return cls(made, text, max(muted, default=0))
        zone = zone_or(chosen.zone, policies.zone, now_us)
        return cls(made, text, max(muted, default=0), own, zone, now_us)

    def encode(self) -> str:
        """As *acquire* takes it; '' where it has no say: a category with bypass is held by nothing."""
        if self.rules.category.bypass:
            return ""
        told: dict[str, Any] = {"t": self.text, "muted": self.muted_us}
        if self.zone is not None:
            told["calendar"] = [[window.limit, *self._now_in(window)] for window in self.own.calendar]
            told["quiet"] = [*self.quiet()]
            told["of"] = self._holds()
        return json.dumps(told, separators=(",", ":"))

    def describe(self, scope: str, rule: int, at_us: int) -> str:
        """Say what holds it back until a moment, for people."""
        if scope == "mute":
            return "user muted"
        assert self.zone is not None
        by = self.own.calendar[rule] if scope == "calendar" else max(self.own.closed, key=lambda each: each.every_us)
        return said(("user", by), "", at_us, self.zone)

    def quiet(self) -> Iterator[Span]:
        """When nothing goes by the user's own hours, in order: as far as any moment for which this holds can ask."""
        assert self.zone is not None
        if self.rules.category.ignores_quiet:
            return
        begin, end = self.now_us - DAY_US, self.now_us + DAY_US + WEEK_US
        yield from sorted(span for hours in self.own.closed for span in _spans(hours, self.zone, begin, end))

    def _holds(self) -> Span:
        """From when until when this is right: two days, and no longer than each calendar window."""
        spans = [self._now_in(window) for window in self.own.calendar]
        return (
            max([self.now_us - DAY_US, *(begins for begins, _ in spans)]),
            min([self.now_us + DAY_US, *(ends for _, ends in spans)]),
        )

    def _now_in(self, window: CalendarWindow) -> Span:
        """The day, week or month of the moment."""
        assert self.zone is not None
        begins = self.zone.next_start(window.unit, self.now_us - 2 * window.horizon_us)
        while (ends := self.zone.next_start(window.unit, begins)) <= self.now_us:
            begins = ends
        return begins, ends


def _spans(hours: Closed, zone: Zone, at_us: int, end_us: int) -> Iterator[Span]:
    while at_us < end_us:
        opens = zone.first_outside(hours.from_us, hours.to_us, at_us, hours.every_us)
        if opens > at_us:
            yield at_us, opens
        at_us = zone.first_outside(hours.to_us, hours.from_us, opens, hours.every_us)
