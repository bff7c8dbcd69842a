"""The sends on record in this process, each with its cost, for the rules of one key."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

MAX_TAKEN_IN: Final = 1000  # as in `burst.lua` and `marks.lua`
EVER_US: Final = 2**63


class Record:
    """Sends, the earliest first; a send of cost 3 counts as three. Lapsed sends may remain: they hold nothing back.

    bursts: for each, when its bucket is full again (µs), and up to when sends are in it. They outlast the sends.
    """

    __slots__ = ("_ids", "_sums", "_times", "bursts")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._ids: list[Any] = []  # of their permits
        self._sums: list[int] = [0]  # of their costs: before the first send, and after each
        self.bursts: dict[Any, tuple[int, int]] = {}

    def latest(self, n: int) -> int | None:
        """The µs of the n-th latest, from 1; None if there are fewer."""
        before = self._sums[-1] - n
        return self._times[bisect_right(self._sums, before) - 1] if before >= self._sums[0] else None

    def after(self, us: int) -> int:
        """How many are later than a moment."""
        return self._sums[-1] - self._sums[bisect_right(self._times, us)]

    def between(self, after_us: int, until_us: int = EVER_US, most: int = MAX_TAKEN_IN) -> list[tuple[int, int]]:
        """(µs, cost) of the latest `most` sends that are later than `after_us`, and no later than `until_us`."""
        end, sums = bisect_right(self._times, until_us), self._sums
        first = max(bisect_right(self._times, after_us), end - most)
        return [(self._times[n], sums[n + 1] - sums[n]) for n in range(first, end)]

    def _insert(self, name: Any, at_us: int, cost: int) -> None:
        times, sums = self._times, self._sums
        if not times or times[-1] <= at_us:
            times.append(at_us)
            sums.append(sums[-1] + cost)
            self._ids.append(name)
            return
        place = bisect_right(times, at_us)
        times.insert(place, at_us)
        self._ids.insert(place, name)
        sums[place + 1 :] = [sums[place] + cost, *[total + cost for total in sums[place + 1 :]]]

    def _change(self, n: int, cost: int) -> int:
        """Change the cost of the send at index n; 0 removes it. Returns by how much the cost grew."""
        sums = self._sums
        by = cost - (sums[n + 1] - sums[n])
        sums[n + 1 :] = [total + by for total in sums[n + 1 :]]
        if not cost:
            del self._times[n], self._ids[n], sums[n + 1]
        return by

    def _drop(self, n: int) -> None:
        del self._times[:n], self._ids[:n], self._sums[:n]
