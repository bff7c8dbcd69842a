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
        self._adds: Counter[str] = Counter()

    def late(self, category: str, seconds: float) -> None:
        """A notification was handed over so long after its user was due."""
        self._add(f"late|{category}", seconds)

    def answered(self, route: str, seconds: float) -> None:
        """A provider took so long to answer."""
        self._add(f"answer|{route}", seconds)

    def _add(self, name: str, seconds: float) -> None:
        us = max(0, round(seconds * 1e6))
        self._adds[f"{name}|{bucket(us)}"] += 1
        self._adds[f"{name}|s"] += us

    def take(self) -> Mapping[str, int]:
        """All of it; what Redis did not take is to be given back."""
        taken, self._adds = self._adds, Counter()
        return taken

    def give_back(self, taken: Mapping[str, int]) -> None:
        """Keep these for the next call."""
        self._adds.update(taken)
