"""What is known of sends that no longer stand as themselves: as in `counts.lua` and `burst.lua`."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from notifier.rules.policy import Burst

MANY: Final = 8
MAX_FOLDED: Final = 100
MAX_REPLAYED: Final = 256


class Counts:
    """How many there were in all, up to the latest of each bucket of time that had any."""

    __slots__ = ("_times", "_totals")

    def __init__(self) -> None:
        self._times = [0]
        self._totals = [0]

    @classmethod
    def on_record(cls, counts: Sequence[tuple[int, int]]) -> Counts:
        """Those that Redis has: (µs, how many in all up to then), the earliest first."""
        made = cls()
        made._times, made._totals = [at for at, _ in counts], [total for _, total in counts]
        return made

    def __len__(self) -> int:
        return self._totals[-1] - self._totals[0]

    def nth(self, n: int) -> int | None:
        """When the n-th latest was; of a bucket, its latest."""
        total = self._totals[-1]
        return self._times[bisect_left(self._totals, total - n + 1)] if n <= total else None

    def after(self, us: int) -> tuple[int, int | None]:
        """How many were after this, and the latest of the first bucket that counts some of them."""
        gone = max(0, bisect_right(self._times, us) - 1)
        return self._totals[-1] - self._totals[gone], self._times[gone + 1] if gone + 1 < len(self._times) else None

    def fold(self, sends: Iterable[int], precision_us: int, lapsed_us: int) -> None:
        """Count sends, none earlier than those before; what is as old as `lapsed_us` is over for every rule."""
        times, totals = self._times, self._totals
        for send in sends:
            at = max(times[-1], send)
            if at // precision_us == times[-1] // precision_us:
                times[-1] = at
                totals[-1] += 1
            else:
                times.append(at)
                totals.append(totals[-1] + 1)
        lapsed = 0
        while lapsed < 2 * MANY and lapsed + 1 < len(times) and times[lapsed + 1] <= lapsed_us:
            lapsed += 1
        del times[:lapsed], totals[:lapsed]


class TokenBucket:
    """When a bucket would be full again, as of the sends up to `at_us`."""

    __slots__ = ("at_us", "every_us", "full_us")

    def __init__(self) -> None:
        self.full_us = self.every_us = 0
        self.at_us = -1

    def under(self, burst: Burst) -> None:
        """Go by this rule: as many stay used as were, all of them at the most."""
        if self.every_us and self.full_us > self.at_us:
            used = (self.full_us - self.at_us) / self.every_us
            self.full_us = self.at_us + math.ceil(used * burst.every_us)
        self.every_us = burst.every_us
        self.full_us = min(self.full_us, self.at_us + burst.limit * burst.every_us)

    def next_for(self, sends: Sequence[int], burst: Burst, cost: int) -> int:
        """The first µs at which `cost` more are in it, after these sends, the earliest first. See `burst_next`."""
        full = self.full_us
        if len(sends) > MAX_REPLAYED:
            sends = sends[-MAX_REPLAYED:]
        if len(sends) == MAX_REPLAYED:
            full = sends[0] + burst.limit * burst.every_us
        free, left = burst.limit - cost, len(sends)
        opens = full - (free - left) * burst.every_us if left <= free else None
        for at in sends:
            full, left = _drained(full, at, burst), left - 1
            if left <= free:
                without = full - (free - left) * burst.every_us
                opens = without if opens is None else min(opens, without)
        assert opens is not None
        return opens

    def keep(self, sends: Iterable[int], burst: Burst) -> None:
        """Take sends into the state, the earliest first."""
        for at in sends:
            self.full_us, self.at_us = _drained(self.full_us, at, burst), at


def _drained(full_us: int, at_us: int, burst: Burst) -> int:
    return min(max(full_us, at_us) + burst.every_us, at_us + burst.limit * burst.every_us)
