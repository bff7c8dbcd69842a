"""Numbers: the lateness of sends, and how long providers take, gathered until the next settle call writes them.

A histogram's n-th bucket counts times up to 2**n ms, the last one the rest. Redis keeps the buckets by the minute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from notifier.queue.minutes import BOUNDS_S


class Numbers:
    """Gathers what is measured until `take`.

    late: seconds from when each notification's user was due until it was handed over, by category. answered: seconds
    until a provider answered, by route.
    """

    def __init__(self) -> None:
        self.late: defaultdict[str, list[float]] = defaultdict(list)
        self.answered: defaultdict[str, list[float]] = defaultdict(list)

    def take(self) -> Counter[str]:
        """Return the numbers by their names in Redis, and begin anew."""
        taken: Counter[str] = Counter()
        for kind, measured in (("late", self.late), ("answer", self.answered)):
            for label, times_s in measured.items():
                taken[f"{kind}|{label}|s"] += round(sum([time_s for time_s in times_s if time_s > 0]) * 1e6)
                for n, count in Counter([bisect_left(BOUNDS_S, time_s) for time_s in times_s]).items():
                    taken[f"{kind}|{label}|{n}"] += count
            measured.clear()
        return taken
