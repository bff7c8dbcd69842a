"""When a send may go, in Python: one statement of the rules, without I/O and without a clock of its own.

`Sends.opens` says it of one policy and the sends on record, `opens` of a notification and all its rules. `preview`,
expected times and `FakeNotifier` ask here. The scripts in Redis say the same in Lua, and the property tests compare the
two. All times are µs since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from notifier.rules.record import MAX_TAKEN_IN, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from notifier.rules.policies import Rules
    from notifier.rules.policy import Burst, Policy
    from notifier.rules.preferences import Mute
    from notifier.rules.quiet_hours import ByClock, Decider, Rule

MANY: Final = 8  # as in `counts.lua`: fewer sends are not put into buckets
MAX_FOLDED: Final = 100  # as in `counts.lua`: so many at once


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
    """The first µs at which one of a category may go, and what decides it; nothing holds what bypasses.

    mute: what its user has muted. clock: what goes by the clock on the user's wall. gather_us: until when a digest
    gathers others.
    """
    category = rules.category
    if category.bypass:
        return 0, None
    at, rule = of_user.opens(rules.user, category.cost)
    of_own, own = of_category.opens(category.policy, category.cost)
    by: Decider | None = None if rule is None else ("user", rule)
    if own is not None and of_own > at:
        at, by = of_own, ("category", own)
    at, by = after_limits(at, by, now_us, mute, clock)
    return max(at, gather_us), by


def after_limits(
    at_us: int, by: Decider | None, now_us: int, mute: Mute | None, clock: ByClock | None
) -> tuple[int, Decider | None]:
    """As `opens`, for one that the limits hold back until `at_us` because of `by`."""
    if mute is not None and mute.until_us > at_us:
        at_us, by = mute.until_us, ("user", mute)
        if mute.is_endless:
            return at_us, by
    if clock is not None:
        at_us, moved = clock.first_open(max(at_us, now_us))
        by = moved or by
    return at_us, by


class Sends(Record):
    """The sends that one policy judges.

    One in flight stands at the end of its lease, as it may be received as late as that; once it is settled, there.
    """

    __slots__ = ("_folded", "until_us")

    def __init__(self) -> None:
        super().__init__()
        self._folded = 0  # so many of the first stand for a bucket each, as late as its latest
        self.until_us = 0  # when no rule can ask for any of them again

    @classmethod
    def on_record(
        cls, times: Iterable[int], buckets: Sequence[tuple[int, int]], bursts: Mapping[Burst, tuple[int, int]]
    ) -> Sends:
        """Read the sends that Redis has: single ones, buckets of counted ones, and the states of bursts.

        buckets: of each its latest, and how many there were in all by then. What is in the first has lapsed.
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
        """The first µs at which `cost` more keep a policy, and the rule that decides it; 0 and None where none does."""
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
        """Take what was sent before now into the state of a burst."""
        self.bursts[burst] = burst.state_at(self, now_us - 1)

    def add(self, policy: Policy, permit: str, at_us: int, now_us: int, *, cost: int = 1, longest_us: int = 0) -> None:
        """Record a send, and forget what neither `policy` asks for any more, nor others that ask for `longest_us`."""
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
        """For how long the rules that have asked so far ask; 0 where that is not known, or over."""
        return self.until_us - self._times[-1] if self._times and self.until_us > now_us else 0

    def move(self, permit: str, at_us: int) -> None:
        """Let a send stand where it was settled."""
        if cost := self.remove(permit):
            self._insert(permit, at_us, cost)

    def remove(self, permit: str) -> int:
        """Take a send back, which reached nobody; returns what it cost, 0 where it does not stand there any more.

        The others may have found a bucket full because of it: then no more comes back than those leave.
        """
        try:
            place = self._ids.index(permit, self._folded)
        except ValueError:
            return 0
        at = self._times[place]
        cost = -self._change(place, 0)
        for burst, (full, till) in self.bursts.items():
            left = self.between(at - burst.horizon_us - 1, till)  # as if it had been empty then: full again at `at`
            if at <= till and len(left) < MAX_TAKEN_IN:
                self.bursts[burst] = max(full - cost * burst.every_us, burst.full_after(at, left)), till
        return cost

    def _insert(self, name: str, at_us: int, cost: int) -> None:
        # Where the clock was set back, what stands for a later bucket stands for itself from now on.
        self._folded = bisect_right(self._times, at_us, 0, self._folded)
        super()._insert(name, at_us, cost)

    def _fold(self, policy: Policy, now_us: int) -> None:
        """Put what bucketed windows alone ask for into buckets: each stands there as late as its latest does."""
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
