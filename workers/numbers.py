"""Numbers: how late a worker is, and how long its providers take, gathered until the next settle call takes them along.

A histogram's n-th bucket holds what took at most 2**n ms (`bucket`).
Redis keeps, by the minute, those that hold something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from notifier.dispatch.minutes import bucket


class Numbers:
    """What was measured since the last settle call that Redis answered."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._sums_us: dict[tuple[str, str], int] = {}
        self._given_back: Counter[str] = Counter()

    def late(self, category: str, seconds: float) -> None:
        """A notification was handed over so long after its user was due."""
        self._add("late", category, seconds)

    def answered(self, route: str, seconds: float) -> None:
        """A provider took so long to answer."""
        self._add("answer", route, seconds)

    def _add(self, what: str, of: str, seconds: float) -> None:
        us = max(0, round(seconds * 1e6))
        in_bucket = what, of, bucket(us)
        self._counts[in_bucket] = self._counts.get(in_bucket, 0) + 1
        self._sums_us[what, of] = self._sums_us.get((what, of), 0) + us

    def take(self) -> Mapping[str, int]:
        """All of it, as Redis names it; what Redis did not take is to be given back."""
        taken, self._given_back = self._given_back, Counter()
        taken.update({f"{what}|{of}|{n}": count for (what, of, n), count in self._counts.items()})
        taken.update({f"{what}|{of}|s": us for (what, of), us in self._sums_us.items()})
        self._counts, self._sums_us = {}, {}
        return taken

    def give_back(self, taken: Mapping[str, int]) -> None:
        """Keep these for the next call."""
        self._given_back.update(taken)
