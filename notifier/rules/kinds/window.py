"""The rolling window: at most `limit` sends in any interval."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from notifier.rules.kinds.kind import Receipt, RuleOfSends
from notifier.rules.record import Record
from notifier.units import (
    DURATION,
    LARGEST_LIMIT,
    SHORTEST_INTERVAL_US,
    UNITS,
    WORDS,
    checked_limit,
    format_duration,
    interval_of,
    parse_duration,
    shown,
    unit_of,
)

_RATE: Final = re.compile(r"([0-9]{1,15})\s*/\s*(.+)")


@dataclass(frozen=True, slots=True, init=False)
class Window(RuleOfSends):
    """At most `limit` sends in any half-open rolling interval: `Window(10, "1m")`, `Window(10, timedelta(minutes=1))`.

    interval_us: the interval in microseconds, at least 1 ms.
    precision_us: 0 is exact. Otherwise a send may wait longer by this time, and the window needs less memory.
    """

    limit: int
    interval_us: int
    precision_us: int

    def __init__(
        self,
        limit: int,
        interval: str | timedelta | None = None,
        *,
        interval_us: int | None = None,
        precision_us: int = 0,
    ) -> None:
        """Give the interval as text or as a timedelta, or in microseconds by name.

        Raises TypeError for a bare number, which has no unit (`Window(5, 60)` is not five a minute), and ValueError
        for a limit under 1 and an interval under 1 ms.
        """
        object.__setattr__(self, "limit", checked_limit(limit))
        object.__setattr__(self, "interval_us", interval_of(f"Window({limit}", interval, interval_us))
        object.__setattr__(self, "precision_us", precision_us)

    @property
    def max_cost(self) -> int:
        return self.limit

    @property
    def horizon_us(self) -> int:
        return self.interval_us

    @property
    def exact_us(self) -> int:
        """How long it needs each send by itself, in microseconds; 0 if it counts in buckets."""
        return 0 if self.precision_us else self.interval_us

    def opens(self, sends: Record, cost: int) -> int:
        """The first µs at which `cost` more fit; 0 if nothing holds them back.

        They fit into (t - interval, t] once the (limit - cost + 1)-th latest has left it. If the rules have changed and
        the cost is above the limit, they fit once no other send counts.
        """
        nth = sends.latest(max(1, self.limit - cost + 1))
        return 0 if nth is None else nth + self.interval_us

    def used(self, sends: Record, now_us: int) -> int:
        return sends.after(now_us - self.interval_us)

    def max_in(self, interval_us: int) -> int:
        return self.limit * -(-interval_us // self.interval_us)

    def broken(self, receipts: Sequence[Receipt]) -> Iterator[str]:
        """How receipts break it, for people: by the interval that holds the most."""
        count = self.largest_count(receipts)
        if count > self.limit:
            yield f"{count} within {self}"

    def largest_count(self, receipts: Sequence[Receipt]) -> int:
        """The largest total cost of receipts, the earliest first, in any half-open interval `(t - interval, t]`."""
        return largest_count([receipt.first_us for receipt in receipts for _ in range(receipt.cost)], self.interval_us)

    def write(self, table: dict[str, Any]) -> None:
        table["windows"] += [self.limit, self.interval_us]

    def __str__(self) -> str:
        return f"{self.limit}/{format_duration(self.interval_us)}"


def largest_count(times_us: Sequence[int], interval_us: int) -> int:
    """The most of these ascending times in any half-open interval `(t - interval, t]`."""
    most = begin = 0
    for end, at in enumerate(times_us):
        while at - times_us[begin] >= interval_us:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def parse_window(text: str, *others: str) -> Window:
    """Return the window in `10/minute`, `5/10s`, `200/day` or `1/2h`. others: further units, for an error.

    Raise ValueError, saying what would be right, for another form, a limit under 1 or over a million, or
    an interval under 1 ms or over 366 days.
    """
    text = " ".join(text.split())  # so that many spaces cost the pattern no time
    match = _RATE.fullmatch(text)
    if match is None:
        if text.startswith("-"):
            raise ValueError(f"{shown(text)}: a limit cannot be negative; it must be at least 1")
        raise ValueError(f"{shown(text)} is not a rate; write a limit and an interval, such as 10/minute or 5/10s")
    limit, interval = int(match[1]), match[2]
    if limit < 1:
        raise ValueError(f"{shown(text)}: the limit must be at least 1")
    if limit > LARGEST_LIMIT:
        raise ValueError(f"{shown(text)}: the limit must be at most {LARGEST_LIMIT}")
    if unit_of(interval) in UNITS:
        return Window(limit, interval_us=UNITS[unit_of(interval)])
    duration = DURATION.fullmatch(interval)
    unit = duration[2] if duration else interval
    if unit and unit_of(unit) not in UNITS:
        units = f"{', '.join(UNITS)} or {', '.join((*WORDS, *others))}"
        raise ValueError(f"{shown(text)}: unknown unit {shown(unit)}; use {units}")
    try:
        return Window(limit, interval_us=parse_duration(interval, least_us=SHORTEST_INTERVAL_US))
    except ValueError as error:
        raise ValueError(f"{shown(text)}: the interval {error}") from None
