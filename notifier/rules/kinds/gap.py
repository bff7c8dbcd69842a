"""The gap: the least time between two sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from notifier.rules.kinds.kind import Receipt, RuleOfSends
from notifier.rules.record import Record
from notifier.units import format_duration


@dataclass(frozen=True, slots=True)
class Gap(RuleOfSends):
    """At least `us` microseconds between two sends."""

    us: int

    @property
    def horizon_us(self) -> int:
        return self.us

    def opens(self, sends: Record, cost: int) -> int:
        """The first µs at which one more send keeps the gap, whatever its cost; 0 if no send holds it back."""
        del cost
        last = sends.latest(1)
        return 0 if last is None else last + self.us

    def max_in(self, interval_us: int) -> int:
        return (interval_us - 1) // self.us + 1

    def broken(self, receipts: Sequence[Receipt]) -> Iterator[str]:
        """How receipts break it, for people: by the two that are nearest to each other."""
        least = smallest_gap(receipts)
        if least is not None and least < self.us:
            yield f"a gap of {least} µs where {self.us} µs is the least"

    def write(self, table: dict[str, Any]) -> None:
        table["gap"] = self.us

    def __str__(self) -> str:
        return f"gap {format_duration(self.us)}"


def smallest_gap(receipts: Sequence[Receipt]) -> int | None:
    """The least time in µs from the last device of a send to the first of the next; None for fewer than two."""
    gaps = [after.first_us - before.last_us for before, after in pairwise(receipts)]
    return min(gaps, default=None)
