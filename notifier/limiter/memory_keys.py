"""The sends of a limiter's key in this process: the reference implementation of `sends.lua` and its neighbours."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from notifier.limiter.plans import Plan, StaleError
from notifier.limiter.protocol import BLOCK, BURST
from notifier.rules.policy import Policy
from notifier.rules.record import MAX_TAKEN_IN, Record

MAX_PLACES: Final = 32  # as in marks.lua
MAX_LATER: Final = 200  # as in places.lua
MAX_REWARDED: Final = 127  # as MANY in older_sends.lua


class KeySends(Record):
    """The sends of one key. Until `until_us` a rule needs `horizon_us` of them; afterwards, `shorter_us` is enough."""

    __slots__ = ("_places", "blocked_us", "horizon_us", "shorter_us", "until_us")

    def __init__(self) -> None:
        super().__init__()
        self._places: list[int] = []
        self.until_us = self.horizon_us = self.shorter_us = self.blocked_us = 0

    def opens(self, plan: Plan, now: int) -> tuple[int, int]:
        """When a plan admits its cost (µs), and the number of the deciding rule; see *opens* in limit_rules.lua."""
        at, rule, policy = 0, -1, plan.policy
        if policy.gap_us and self._times:
            at, rule = self._times[-1] + policy.gap_us, 0
        for n, window in enumerate(policy.windows, 1):
            leaves = window.opens(self, plan.cost)
            if leaves > at:
                at, rule = leaves, n
        if plan.dates:
            leaves, n = self._opens_dates(plan, now)
            if leaves > at:
                at, rule = leaves, n
        if policy.burst:
            leaves = policy.burst.opens_from(*policy.burst.state_at(self, now), self, plan.cost)
            if leaves > at:
                at, rule = leaves, BURST
        return (self.blocked_us, BLOCK) if self.blocked_us > at else (at, rule)

    def _opens_dates(self, plan: Plan, now: int) -> tuple[int, int]:
        at, rule = 0, -1
        for n, (limit, begins) in enumerate(plan.dates, len(plan.policy.windows) + 1):
            nth = self.latest(max(1, limit - plan.cost + 1)) or 0
            if not begins[0] <= now < begins[1] or nth >= begins[-2]:  # `room` needs one date more
                raise StaleError(now, max(now, nth))
            leaves = begins[bisect_right(begins, nth)] if nth >= begins[0] else 0
            if leaves > at:
                at, rule = leaves, n
        return at, rule

    def room(self, plan: Plan, at: int, now: int) -> tuple[int | None, int | None, int]:
        """How many more the windows admit at µs `at`, in how many µs they admit more, and which has the least room."""
        rooms, n = [], 0
        for window in plan.policy.windows:
            n += 1
            count = self.after(at - window.interval_us)
            first = self.latest(count) if count else None
            rooms.append((max(0, window.limit - count), now - (at if first is None else first + window.interval_us), n))
        for limit, begins in plan.dates:
            n += 1
            next_begins = bisect_right(begins, at)
            count = self.after(begins[max(0, next_begins - 1)] - 1)
            if next_begins < len(begins):
                rooms.append((max(0, limit - count), now - begins[next_begins], n))
        if not rooms:
            return None, None, -1
        remaining, since, narrowest = min(rooms)  # of equal ones, the window that admits more last
        return remaining, max(0, -since), narrowest

    def place_for(self, plan: Plan, at: int, now: int) -> int | None:
        """The earliest place (the time of a refunded permit) before µs `at` that a plan may take; none in a block."""
        for place in sorted(self._places):
            if place >= at:
                return None
            if place >= max(now, self.blocked_us) and self._fits(plan, place, now):
                return place
        return None

    def take(self, plan: Plan, permit: int, at: int, now: int, place: int | None) -> None:
        if not plan.kept_us:
            return
        self._keep(plan.kept_us, now, at)
        if burst := plan.policy.burst:
            full, _ = burst.state_at(self, now)
            self.bursts[burst] = burst.full_after(full, [(now, plan.cost)] if at <= now else []), now
        if place is not None:
            self._places.remove(place)
        if self._places or self.bursts or self.blocked_us:
            self._forget_marks(now)
        lapsed, times = now - self.horizon_us, self._times
        if times and times[len(times) // 2] <= lapsed:  # not before half are lapsed: a deletion moves all others
            self._drop(bisect_right(times, lapsed))
        self._insert(permit, at, plan.cost)

    def refuse(self, plan: Plan, at: int, now: int) -> None:
        """Keep the sends that refuse a plan until they admit it, at µs `at`."""
        if plan.kept_us >= self.horizon_us and at > self.until_us:
            self._keep(plan.kept_us, now, at - plan.kept_us)

    def change(self, at: int, permit: int, cost: int, now: int) -> int | None:
        """Change the cost of a send; 0 removes it. Returns by how much the cost fell; None if the send is not there."""
        n = bisect_right(self._times, at) - 1
        while n >= 0 and self._times[n] == at and self._ids[n] != permit:
            n -= 1
        if at <= now - self.horizon_us or n < 0 or self._times[n] != at:
            return None
        by = self._change(n, cost)
        self._correct_bursts(at, by, now)
        if not cost and at > now and len(self._places) < MAX_PLACES:
            self._places.append(at)
        return -by

    def block(self, span: int, now: int) -> None:
        """Admit nothing for `span` µs; 0 ends the block."""
        self.blocked_us, self.until_us = now + span if span else 0, max(self.until_us, now + span)

    def reward(self, cost: int, now: int) -> int:
        """Subtract `cost` from the latest sends; returns how much was subtracted."""
        left = cost
        for _ in range(MAX_REWARDED):
            if not left or not self._times or self._times[-1] <= now - self.horizon_us:
                break
            at, has = self._times[-1], self._sums[-1] - self._sums[-2]
            by = self._change(len(self._times) - 1, has - min(has, left))
            self._correct_bursts(at, by, now)
            left += by
        return cost - left

    def _fits(self, plan: Plan, at: int, now: int) -> bool:
        """Whether a plan admits its cost at µs `at`, and still admits the permits that are dated ahead after it."""
        policy, later = plan.policy, self.between(at, most=MAX_LATER)
        if len(later) == MAX_LATER or plan.dates or not self._keeps_burst(policy, plan.cost, at, now):
            return False
        if policy.gap_us:
            before = self.between(0, at, 1)
            if (before and at - before[0][0] < policy.gap_us) or (later and later[0][0] - at < policy.gap_us):
                return False
        for window in policy.windows:
            for ends in (at, *(each for each, _ in later if each < at + window.interval_us)):
                if self.after(ends - window.interval_us) - self.after(ends) + plan.cost > window.limit:
                    return False
        return True

    def _keeps_burst(self, policy: Policy, cost: int, at: int, now: int) -> bool:
        """Whether the burst admits each send from µs `at` on, with `cost` more at `at`."""
        if (burst := policy.burst) is None:
            return True
        full, _ = burst.state_at(self, now)
        sends = self.between(now, most=MAX_LATER)
        place = sum(each <= at for each, _ in sends)
        sends.insert(place, (at, cost))
        for i, (each, costs) in enumerate(sends):
            if i >= place and full - (burst.limit - costs) * burst.every_us > each:
                return False
            full = burst.full_after(full, [(each, costs)])
        return True

    def _correct_bursts(self, at: int, by: int, now: int) -> None:
        for burst, (full, till) in self.bursts.items():
            if at > till:
                continue
            sends, every = self.between(at - 1, till), burst.every_us
            if by > 0:
                self.bursts[burst] = min(max(full, at) + by * every, max(full, now + burst.horizon_us)), till
            elif len(sends) < MAX_TAKEN_IN:
                least = 0
                for each, cost in sends:
                    least = max(least, each) + cost * every
                self.bursts[burst] = max(full + by * every, min(least, full)), till

    def _forget_marks(self, now: int) -> None:
        self.blocked_us = self.blocked_us if self.blocked_us > now else 0
        self._places = [place for place in self._places if place > now]
        self.bursts = {
            burst: (full, till)
            for burst, (full, till) in self.bursts.items()
            if full > now or till > now - burst.horizon_us
        }

    def _keep(self, kept: int, now: int, at: int) -> None:
        """Renew how long sends are kept; see *keep* in limit_rules.lua."""
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
