"""When a send may go: the rules in Python, without I/O and without a clock.

`Sends.opens` decides by one policy and the sends on record, `opens` by all rules of a notification. `preview`,
expected times and `FakeNotifier` use them. The scripts in Redis decide the same in Lua, and property tests compare the
two. All times are µs since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from notifier.rules.policies import Rules
from notifier.rules.policy import Burst, Policy
from notifier.rules.preferences import Mute
from notifier.rules.quiet_hours import ByClock, Decider, Rule
from notifier.rules.record import MAX_TAKEN_IN, Record

MANY: Final = 8  # as in `counts.lua`: fewer sends are not folded
MAX_FOLDED: Final = 100  # as in `counts.lua`: sends folded at once


def opens(
    rules: Rules,
    of_user: Sends,
    of_category: Sends,
    now_us: int,
    *,
    mute: Mute | None = None,
    clock: ByClock | None = None,
    gather_us: int = 0,
) -> tuple[int, Decider | None]:
    """The first µs at which a notification of a category may go, and the deciding rule; 0 and None if it bypasses.

    mute: the user's mute. clock: the rules by the user's local time. gather_us: until when a digest gathers others.
    """
    category = rules.category
    if category.bypass:
        return 0, None
    at, rule = of_user.opens(rules.user, category.cost)
    of_own, own = of_category.opens(category.policy, category.cost)
    by: Decider | None = None if rule is None else ("user", rule)
    if own is not None and of_own > at:
        at, by = of_own, ("category", own)
    return after_limits(max(at, gather_us), by, now_us, mute, clock)


def after_limits(
    at_us: int, by: Decider | None, now_us: int, mute: Mute | None, clock: ByClock | None
) -> tuple[int, Decider | None]:
    """As `opens`, for a notification that the limits hold back until `at_us` because of `by`."""
    if mute is not None and mute.until_us > at_us:
        at_us, by = mute.until_us, ("user", mute)
        if mute.is_endless:
            return at_us, by
    if clock is not None:
        at_us, moved = clock.first_open(max(at_us, now_us))
        by = moved or by
    return at_us, by


class Sends(Record):
    """The sends that one policy counts.

    A send in flight counts at the end of its lease, because the provider may receive it that late; once settled, it
    counts at that time.
    """

    __slots__ = ("_folded", "until_us")

    def __init__(self) -> None:
        super().__init__()
        self._folded = 0  # how many entries, from the first on, are buckets, each at the time of its latest send
        self.until_us = 0  # from this time on no rule needs any of these sends

    @classmethod
    def on_record(
        cls, times: Iterable[int], buckets: Sequence[tuple[int, int]], bursts: Mapping[Burst, tuple[int, int]]
    ) -> Sends:
        """Read the sends that Redis has: the times of single sends, buckets of folded sends, and the states of bursts.

        buckets: for each, the time of its latest send, and how many sends there were up to then. The first has lapsed.
        """
        sends, single = cls(), sorted(times)
        sends._folded = max(0, len(buckets) - 1)
        sends._times = [at for at, _ in buckets[1:]] + single
        sends._ids = [""] * len(sends._times)
        totals = [total for _, total in buckets] or [0]
        sends._sums = [*totals, *range(totals[-1] + 1, totals[-1] + 1 + len(single))]
        sends.bursts.update(bursts)
        return sends

    def __len__(self) -> int:
        return self._sums[-1] - self._sums[0]

    def opens(self, policy: Policy, cost: int = 1) -> tuple[int, Rule | None]:
        """The first µs at which `cost` more keep a policy, and the deciding rule; 0 and None if no rule holds them."""
        at = 0
        rule: Rule | None = None
        if not (self._times or self.bursts):
            return at, rule
        for each in policy.rules:
            opens_at = each.opens(self, cost)
            if opens_at > at:
                at, rule = opens_at, each
        return at, rule

    def take_in(self, burst: Burst, now_us: int) -> None:
        """Take the sends before now into the state of a burst."""
        self.bursts[burst] = burst.state_at(self, now_us - 1)

    def add(self, policy: Policy, permit: str, at_us: int, now_us: int, *, cost: int = 1, longest_us: int = 0) -> None:
        """Record a send. Forget sends that neither `policy` needs nor, for `longest_us`, any other rule."""
        if policy.is_empty:
            return
        horizon = max(policy.horizon_us, longest_us)
        if policy.burst is not None:
            self.take_in(policy.burst, now_us)
        if not policy.is_exact:
            self._fold(policy, now_us)
        lapsed = bisect_right(self._times, now_us - horizon, 0, len(self._times) if policy.is_exact else self._folded)
        self._drop(lapsed)
        self._folded = max(0, self._folded - lapsed)
        self._insert(permit, at_us, cost)
        self.until_us = max(at_us + horizon, self.until_us if longest_us else 0)

    def longest_us(self, now_us: int) -> int:
        """How long the rules in use so far need sends; 0 if that is not known, or over."""
        return self.until_us - self._times[-1] if self._times and self.until_us > now_us else 0

    def move(self, permit: str, at_us: int) -> None:
        """Move a send to the time at which it was settled."""
        if cost := self.remove(permit):
            self._insert(permit, at_us, cost)

    def remove(self, permit: str) -> int:
        """Remove a send that reached nobody; returns its cost, 0 if it is not there any more.

        A bucket may have been full since, so no more tokens come back than the other sends leave.
        """
        try:
            place = self._ids.index(permit, self._folded)
        except ValueError:
            return 0
        at = self._times[place]
        cost = -self._change(place, 0)
        for burst, (full, till) in self.bursts.items():
            left = self.between(at - burst.horizon_us - 1, till)  # by `at`, even an empty bucket is full again
            if at <= till and len(left) < MAX_TAKEN_IN:
                self.bursts[burst] = max(full - cost * burst.every_us, burst.full_after(at, left)), till
        return cost

    def _insert(self, name: str, at_us: int, cost: int) -> None:
        # If the clock was set back, a bucket that is later than this send counts as a single send from now on.
        self._folded = bisect_right(self._times, at_us, 0, self._folded)
        super()._insert(name, at_us, cost)

    def _fold(self, policy: Policy, now_us: int) -> None:
        """Fold the sends that only bucketed windows need into buckets, each at the time of its latest send."""
        sums, first = self._sums, self._folded
        old = bisect_right(self._times, now_us - policy.exact_us)
        if sums[old] - sums[min(first, old)] < MANY:
            return
        old = min(old, bisect_right(sums, sums[first] + MAX_FOLDED) - 1)
        times, totals = self._times[:first], sums[: first + 1]
        for at, total in zip(self._times[first:old], sums[first + 1 : old + 1], strict=True):
            if times and at // policy.precision_us == times[-1] // policy.precision_us:
                times[-1], totals[-1] = at, total
            else:
                times.append(at)
                totals.append(total)
        self._folded = len(times)
        self._times[:old], self._ids[:old], sums[: old + 1] = times, [""] * len(times), totals
