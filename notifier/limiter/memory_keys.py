"""The sends of a limiter's key in this process, each with what it costs: the reference of `sends.lua` and its like."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from notifier.limiter.plans import StaleError
from notifier.limiter.protocol import BLOCK, BURST

if TYPE_CHECKING:
    from notifier.limiter.plans import Plan

MAX_TAKEN_IN: Final = 1000  # these as in marks.lua
MAX_PLACES: Final = 32
MAX_LATER: Final = 200
COMPACT_AT: Final = 64  # lapsed sends at the front of a list
MAX_REWARDED: Final = 127


def fold_burst(full: int, sends: Iterable[tuple[int, int]], limit: int, every_us: int) -> int:
    """When a bucket is full again, with these sends (µs, cost), the earliest first, in it."""
    for at, cost in sends:
        full = min(max(full, at) + cost * every_us, at + limit * every_us)
    return full


class KeySends:
    """The sends that the rules of one key judge. until_us: from then on nobody asks beyond shorter_us."""

    __slots__ = (
        "_bursts",
        "_ids",
        "_places",
        "_start",
        "_sums",
        "_times",
        "blocked_us",
        "horizon_us",
        "shorter_us",
        "until_us",
    )

    def __init__(self) -> None:
        self._times: list[int] = []
        self._sums: list[int] = [0]  # up to the end of each, and before the first
        self._ids: list[int] = []
        self._start = 0  # those before it have lapsed; cut off once they are many, as a cut moves all others
        self._bursts: dict[tuple[int, int], tuple[int, int]] = {}
        self._places: list[int] = []
        self.until_us = self.horizon_us = self.shorter_us = self.blocked_us = 0

    def opens(self, plan: Plan, now: int) -> tuple[int, int]:
        """The first µs at which a plan admits its cost, and the deciding rule; see `opens` of limit_rules.lua."""
        times, sums, cost = self._times, self._sums, plan.cost
        total, at, rule = sums[-1] - sums[self._start], 0, -1
        if plan.gap_us and total:
            at, rule = times[-1] + plan.gap_us, 0
        for n, (limit, interval) in enumerate(plan.windows, 1):
            nth = limit - cost + 1 if cost <= limit else 1
            if nth <= total:
                leaves = times[bisect_right(sums, sums[-1] - nth) - 1] + interval
                if leaves > at:
                    at, rule = leaves, n
        if plan.dates:
            leaves, n = self._opens_dates(plan, now)
            if leaves > at:
                at, rule = leaves, n
        if plan.burst:
            leaves = self._opens_burst(*plan.burst, min(cost, plan.burst[0]), now)
            if leaves > at:
                at, rule = leaves, BURST
        return (self.blocked_us, BLOCK) if self.blocked_us > at else (at, rule)

    def _opens_dates(self, plan: Plan, now: int) -> tuple[int, int]:
        at, rule = 0, -1
        for n, (limit, begins) in enumerate(plan.dates, len(plan.windows) + 1):
            nth = self._nth(max(1, limit - plan.cost + 1))
            if not begins[0] <= now < begins[1] or nth >= begins[-2]:  # `room` asks for the date after
                raise StaleError(now, max(now, nth))
            leaves = begins[bisect_right(begins, nth)] if nth >= begins[0] else 0
            if leaves > at:
                at, rule = leaves, n
        return at, rule

    def _nth(self, n: int) -> int:
        sums = self._sums
        return self._times[bisect_right(sums, sums[-1] - n) - 1] if n <= sums[-1] - sums[self._start] else 0

    def weight_after(self, us: int) -> tuple[int, int | None]:
        """How much is later, and the first of it."""
        n = bisect_right(self._times, us, self._start)
        return self._sums[-1] - self._sums[n], self._times[n] if n < len(self._times) else None

    def room(self, plan: Plan, at: int, now: int) -> tuple[int | None, int | None, int]:
        """How many the windows admit yet at µs `at`, in how many µs there are more, and which has the least room."""
        rooms, n = [], 0
        for limit, interval in plan.windows:
            n += 1
            count, first = self.weight_after(at - interval)
            rooms.append((max(0, limit - count), now - (at if first is None else first + interval), n))
        for limit, begins in plan.dates:
            n += 1
            next_begins = bisect_right(begins, at)
            count = self.weight_after(begins[max(0, next_begins - 1)] - 1)[0]
            if next_begins < len(begins):
                rooms.append((max(0, limit - count), now - begins[next_begins], n))
        if not rooms:
            return None, None, -1
        remaining, since, narrowest = min(rooms)  # of equal ones the longest
        return remaining, max(0, -since), narrowest

    def _after(self, after: int, till: int | None, most: int) -> list[tuple[int, int]]:
        """(µs, cost) of the latest `most` sends after one µs and no later than another, the earliest first."""
        end = len(self._times) if till is None else bisect_right(self._times, till, self._start)
        first = max(bisect_right(self._times, after, self._start), end - most)
        sums = self._sums
        return [(self._times[n], sums[n + 1] - sums[n]) for n in range(first, end)]

    def place_for(self, plan: Plan, at: int, now: int) -> int | None:
        """The earliest place that was given back and that a plan may take before µs `at`; there is none in a block."""
        for place in sorted(self._places):
            if place >= at:
                return None
            if place >= max(now, self.blocked_us) and self._fits(plan, place, now):
                return place
        return None

    def take(self, plan: Plan, permit: int, at: int, now: int, place: int | None) -> None:
        """Record a send."""
        if not plan.kept_us:
            return
        self._keep(plan.kept_us, now, at)
        if plan.burst:
            full = self._burst_of(*plan.burst, now)
            self._bursts[plan.burst] = fold_burst(full, [(now, plan.cost)] if at <= now else [], *plan.burst), now
        if place is not None:
            self._places.remove(place)
        if self._places or self._bursts or self.blocked_us:
            self._forget_marks(now)
        self._trim(now - self.horizon_us)
        times, sums = self._times, self._sums
        if not times or times[-1] <= at:
            times.append(at)
            sums.append(sums[-1] + plan.cost)
            self._ids.append(permit)
            return
        n = bisect_right(times, at, self._start)
        times.insert(n, at)
        self._ids.insert(n, permit)
        sums[n + 1 :] = [sums[n] + plan.cost, *[total + plan.cost for total in sums[n + 1 :]]]

    def refuse(self, plan: Plan, at: int, now: int) -> None:
        """Keep what refuses a plan until µs `at`, when it does no longer."""
        if plan.kept_us >= self.horizon_us and at > self.until_us:
            self._keep(plan.kept_us, now, at - plan.kept_us)

    def change(self, at: int, permit: int, cost: int, now: int) -> int | None:
        """Give a send another cost, 0 takes it away; returns how much less it is, None where it is not there."""
        n = bisect_right(self._times, at, self._start) - 1
        while n >= self._start and self._times[n] == at and self._ids[n] != permit:
            n -= 1
        if at <= now - self.horizon_us or n < self._start or self._times[n] != at:
            return None
        by = self._change(n, cost)
        self._correct_bursts(at, by, now)
        if not cost and at > now and len(self._places) < MAX_PLACES:
            self._places.append(at)
        return -by

    def _change(self, n: int, cost: int) -> int:
        sums = self._sums
        by = cost - (sums[n + 1] - sums[n])
        sums[n + 1 :] = [total + by for total in sums[n + 1 :]]
        if not cost:
            del self._times[n], self._ids[n], sums[n + 1]
        return by

    def block(self, span: int, now: int) -> None:
        """Admit nothing for so many µs; 0 ends it."""
        self.blocked_us, self.until_us = now + span if span else 0, max(self.until_us, now + span)

    def reward(self, cost: int, now: int) -> int:
        """Take back so much, of the latest sends first; returns how much it was."""
        left = cost
        for _ in range(MAX_REWARDED):
            n = len(self._times) - 1
            if not left or n < self._start or self._times[n] <= now - self.horizon_us:
                break
            at, has = self._times[n], self._sums[-1] - self._sums[-2]
            by = self._change(n, has - min(has, left))
            self._correct_bursts(at, by, now)
            left += by
        return cost - left

    def _fits(self, plan: Plan, at: int, now: int) -> bool:
        """Whether a plan admits its cost at µs `at`, before permits that are dated ahead."""
        later = self._after(at, None, MAX_LATER)
        if len(later) == MAX_LATER or plan.dates or not self._keeps_burst(plan, at, now):
            return False
        if plan.gap_us:
            before = self._after(0, at, 1)
            if (before and at - before[0][0] < plan.gap_us) or (later and later[0][0] - at < plan.gap_us):
                return False
        for limit, interval in plan.windows:
            for ends in (at, *(each for each, _ in later if each < at + interval)):
                if self.weight_after(ends - interval)[0] - self.weight_after(ends)[0] + plan.cost > limit:
                    return False
        return True

    def _keeps_burst(self, plan: Plan, at: int, now: int) -> bool:
        """Whether no send from µs `at` on comes before its time, if the plan's cost is there."""
        if not plan.burst:
            return True
        limit, every = plan.burst
        full = self._burst_of(limit, every, now)
        sends = self._after(now, None, MAX_LATER)
        place = sum(each <= at for each, _ in sends)
        sends.insert(place, (at, plan.cost))
        for i, (each, cost) in enumerate(sends):
            if i >= place and full - (limit - cost) * every > each:
                return False
            full = fold_burst(full, [(each, cost)], limit, every)
        return True

    def _burst_of(self, limit: int, every: int, now: int) -> int:
        """When a bucket is full again, with all sends up to now in it."""
        full, at = self._bursts.get((limit, every), (0, 0))
        back = max(0, at - now)
        full, at = full - back, at - back
        sends = self._after(at, now, MAX_TAKEN_IN)
        if len(sends) == MAX_TAKEN_IN:
            full = sends[0][0] + limit * every
        return fold_burst(full, sends, limit, every)

    def _opens_burst(self, limit: int, every: int, cost: int, now: int) -> int:
        full = self._burst_of(limit, every, now)
        free, later = limit - cost, self.weight_after(now)[0]
        rest = later - free
        for each, costs in self._after(now, None, 10**6) if rest > 0 else ():
            if (part := min(rest, costs)) > 0:
                full = fold_burst(full, [(each, part)], limit, every)
            rest -= costs
        return full - max(0, free - later) * every

    def _correct_bursts(self, at: int, by: int, now: int) -> None:
        for (limit, every), (full, till) in self._bursts.items():
            if at > till:
                continue
            sends = self._after(at - 1, till, MAX_TAKEN_IN)
            if by > 0:
                self._bursts[limit, every] = min(max(full, at) + by * every, max(full, now + limit * every)), till
            elif len(sends) < MAX_TAKEN_IN:
                least = 0
                for each, cost in sends:
                    least = max(least, each) + cost * every
                self._bursts[limit, every] = max(full + by * every, min(least, full)), till

    def _forget_marks(self, now: int) -> None:
        self.blocked_us = self.blocked_us if self.blocked_us > now else 0
        self._places = [place for place in self._places if place > now]
        self._bursts = {
            rule: (full, till)
            for rule, (full, till) in self._bursts.items()
            if full > now or till > now - rule[0] * rule[1]
        }

    def _keep(self, kept: int, now: int, at: int) -> None:
        """How long sends are kept; see `keep` of limit_rules.lua."""
        horizon, old = self.horizon_us, self.until_us
        if kept == horizon and old >= at + kept:
            return
        if kept < horizon and old > now:
            self.shorter_us = max(self.shorter_us, kept)
            if at > now:
                self.until_us = max(old, at + horizon)
            return
        if kept < horizon:
            kept, self.shorter_us = max(kept, self.shorter_us), 0
        self.horizon_us = kept
        self.until_us = max(old, at + kept) + kept // 8

    def _trim(self, until: int) -> None:
        times, start = self._times, self._start
        if start < len(times) and times[start] <= until:
            start = bisect_right(times, until, start)
            if start >= COMPACT_AT and start * 2 >= len(times):
                del times[:start], self._ids[:start], self._sums[:start]
                start = 0
            self._start = start
