"""When a send may go, in Python: one statement of the rules, without I/O and without a clock of its own.

`Sends.opens` says it of one policy and the sends on record, `opens` of a notification and all its rules. `preview`,
expected times and `FakeNotifier` ask here. The scripts in Redis say the same in Lua, and the property tests compare the
two. All times are µs since the epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from notifier.rules.policies import Rules
    from notifier.rules.policy import Burst, Policy
    from notifier.rules.preferences import Mute
    from notifier.rules.quiet_hours import ByClock, Decider, Rule

MANY: Final = 8  # as in `counts.lua`: fewer sends are not put into buckets
MAX_FOLDED: Final = 100  # as in `counts.lua`: so many at once
MAX_TAKEN_IN: Final = 1000  # as in `burst.lua`


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


class Sends:
    """The sends that one policy judges, the earliest first; one of cost 3 stands three times.

    One in flight stands at the end of its lease, as it may be received as late as that; once it is settled, there.
    """

    __slots__ = ("_bucket_times", "_bucket_totals", "_permits", "_times", "bursts", "until_us")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._permits: list[str] = []
        # What stands as itself no longer: of each bucket its latest, and how many there were in all by then. What is in
        # the first has lapsed.
        self._bucket_times, self._bucket_totals = [0], [0]
        self.bursts: dict[Burst, tuple[int, int]] = {}  # when each is full again, by the sends up to which µs
        self.until_us = 0  # when no rule can ask for any of them again

    @classmethod
    def on_record(
        cls, times: Iterable[int], buckets: Sequence[tuple[int, int]], bursts: Mapping[Burst, tuple[int, int]]
    ) -> Sends:
        """Read the sends that Redis has: single ones, buckets of counted ones, and the states of bursts."""
        sends = cls()
        sends._times = sorted(times)
        sends._permits = [""] * len(sends._times)
        sends._bucket_times, sends._bucket_totals = map(list, zip(*buckets, strict=True)) if buckets else ([0], [0])
        sends.bursts.update(bursts)
        return sends

    def __len__(self) -> int:
        return len(self._times) + self._bucket_totals[-1] - self._bucket_totals[0]

    def latest(self, n: int) -> int | None:
        """The µs of the n-th latest, from 1; None where there are fewer."""
        if n <= len(self._times):
            return self._times[-n]
        rank = self._bucket_totals[-1] + len(self._times) - n
        return self._bucket_times[bisect_right(self._bucket_totals, rank)] if rank >= 0 else None

    def after(self, us: int) -> int:
        """How many are later than a moment."""
        lapsed = self._bucket_totals[max(0, bisect_right(self._bucket_times, us) - 1)]
        return len(self._times) - bisect_right(self._times, us) + self._bucket_totals[-1] - lapsed

    def opens(self, policy: Policy, cost: int = 1) -> tuple[int, Rule | None]:
        """The first µs at which `cost` more keep a policy, and the rule that decides it; 0 and None where none does."""
        at = 0
        rule: Rule | None = None
        if not (self._times or self._bucket_totals[-1] or self.bursts):
            return at, rule
        for each in policy.rules:
            opens_at = each.opens(self, cost)
            if opens_at > at:
                at, rule = opens_at, each
        return at, rule

    def later(self, us: int) -> list[int]:
        """The µs of those that are later than a moment."""
        return self._times[bisect_right(self._times, us) :]

    def take_in(self, burst: Burst, now_us: int) -> None:
        """Take what was sent before now into the state of a burst, which outlasts the sends."""
        full, till = self.bursts.get(burst, (0, 0))
        back = max(0, till + 1 - now_us)  # the clock was set back: as much is used as before
        full, till = full - back, till - back
        sends = self._times[bisect_right(self._times, till) : bisect_left(self._times, now_us)]
        if len(sends) >= MAX_TAKEN_IN:  # the rule is new: as if the bucket had been empty then
            full = sends[-MAX_TAKEN_IN] + burst.horizon_us
        if sends or back:
            self.bursts[burst] = burst.full_after(full, sends[-MAX_TAKEN_IN:]), now_us - 1

    def add(self, policy: Policy, permit: str, at_us: int, now_us: int, *, cost: int = 1, longest_us: int = 0) -> None:
        """Record a send, and forget what neither `policy` asks for any more, nor others that ask for `longest_us`."""
        if policy.is_empty:
            return
        horizon = max(policy.horizon_us, longest_us)
        if policy.burst is not None:
            self.take_in(policy.burst, now_us)
        if policy.is_exact:
            lapsed = bisect_right(self._times, now_us - horizon)
            del self._times[:lapsed], self._permits[:lapsed]
        else:
            self._fold(policy, now_us, horizon)
        self._insert(permit, at_us, cost)
        self.until_us = max(at_us + horizon, self.until_us if longest_us else 0)

    def longest_us(self, now_us: int) -> int:
        """For how long the rules that have asked so far ask; 0 where that is not known, or over."""
        return self.until_us - self._times[-1] if self._times and self.until_us > now_us else 0

    def move(self, permit: str, at_us: int) -> None:
        """Let a send stand where it was settled."""
        self._insert(permit, at_us, self.remove(permit))

    def remove(self, permit: str) -> int:
        """Take a send back, which reached nobody; returns what it cost, 0 where it does not stand there any more.

        The others may have found a bucket full because of it: then no more comes back than those leave.
        """
        if not (cost := self._permits.count(permit)):
            return 0
        place = self._permits.index(permit)  # what one cost stands together
        at = self._times[place]
        del self._times[place : place + cost], self._permits[place : place + cost]
        for burst, (full, till) in self.bursts.items():
            since = at - burst.horizon_us  # as if it had been empty then: it would be full at `at`
            left = self._times[bisect_left(self._times, since) : bisect_right(self._times, till)]
            if at <= till and len(left) < MAX_TAKEN_IN:
                least = burst.full_after(at, left)
                self.bursts[burst] = max(full - cost * burst.every_us, least), till
        return cost

    def _insert(self, permit: str, at_us: int, cost: int) -> None:
        place = bisect_right(self._times, at_us)
        self._times[place:place] = [at_us] * cost
        self._permits[place:place] = [permit] * cost

    def _fold(self, policy: Policy, now_us: int, horizon_us: int) -> None:
        """Put what bucketed windows alone ask for into buckets: each stands there as late as its latest does."""
        sends = self._times[: min(bisect_right(self._times, now_us - policy.exact_us), MAX_FOLDED)]
        if len(sends) < MANY:
            return
        del self._times[: len(sends)], self._permits[: len(sends)]
        times, totals = self._bucket_times, self._bucket_totals
        for sent in sends:
            at, total = max(times[-1], sent), totals[-1] + 1
            if at // policy.precision_us == times[-1] // policy.precision_us:
                times[-1], totals[-1] = at, total
            else:
                times.append(at)
                totals.append(total)
        lapsed = min(bisect_right(times, now_us - horizon_us) - 1, 2 * MANY)
        if lapsed > 0:
            del times[:lapsed], totals[:lapsed]
