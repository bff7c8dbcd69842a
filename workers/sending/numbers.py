"""Numbers: how late a worker is, and how long its providers take, gathered until the next settle call takes them along.

A histogram's n-th bucket holds what took at most 2**n ms, the last all the rest.
Redis keeps, by the minute, those that hold something.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from notifier.queue.minutes import BOUNDS_S


class Numbers:
    """Gather what was measured since it was taken last.

    late: seconds from when each notification's user was due until it was handed over, by category. answered: seconds
    until a provider answered, by route.
    """

    def __init__(self) -> None:
        self.late: defaultdict[str, list[float]] = defaultdict(list)
        self.answered: defaultdict[str, list[float]] = defaultdict(list)

    def take(self) -> Counter[str]:
        """All of it, as Redis names it."""
        taken: Counter[str] = Counter()
        for what, measured in (("late", self.late), ("answer", self.answered)):
            for of, times_s in measured.items():
                taken[f"{what}|{of}|s"] += round(sum([time_s for time_s in times_s if time_s > 0]) * 1e6)
                for n, count in Counter([bisect_left(BOUNDS_S, time_s) for time_s in times_s]).items():
                    taken[f"{what}|{of}|{n}"] += count
            measured.clear()
        return taken
