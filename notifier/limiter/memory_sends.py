"""The sends that rules judge, in this process alone: a reference implementation of the scripts, for `MemoryLimiter`."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from itertools import count
from typing import TYPE_CHECKING, Final

from notifier.limiter.memory_counts import MANY, MAX_FOLDED, Counts, TokenBucket
from notifier.limiter.protocol import BURST, Hold, Permit, describe, split
from notifier.rules.costs import check_cost
from notifier.rules.policy import KEPT_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from notifier.rules.policies import Rules
    from notifier.rules.policy import Burst, Policy

SWEEP_AT: Final = 1024  # sets of sends; the lapsed ones are looked for when their number has doubled
COMPACT_AT: Final = 64  # lapsed sends at the front of a list


def system_clock() -> int:
    """Microseconds since the epoch on this machine's clock."""
    return time.time_ns() // 1_000


class Sends:
    """What one set of rules judges: permit -> µs, in the future while in flight, the settling time after.

    A look-up costs the same however long the windows are; a send stands as often as it costs.
    """

    __slots__ = ("_at", "_bucket", "_counts", "_horizon_us", "_permits", "_shorter_us", "_start", "_times", "until_us")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._permits: list[str] = []
        self._start = 0  # those before it have lapsed; cut off once they are many, as a cut moves all others
        self._at: dict[str, int] = {}
        self._counts: Counts | None = None
        self._bucket: TokenBucket | None = None
        self.until_us = 0  # when no rule can ask for any of them again
        self._horizon_us = self._shorter_us = 0  # see `_keep`

    @classmethod
    def on_record(cls, times: Iterable[int], counts: Sequence[tuple[int, int]], burst: Sequence[int]) -> Sends:
        """Those that Redis has: of each that stands as itself its µs; (µs, how many in all) of each bucket, the first
        of which has lapsed; and of a token bucket when it is full again, as of when, and with which pace.
        """
        sends = cls()
        for at in times:
            sends._insert("", at, 1)
        if counts:
            sends._counts = Counts.on_record(counts)
        if burst:
            sends._bucket = TokenBucket()
            sends._bucket.full_us, sends._bucket.at_us, sends._bucket.every_us = burst
        return sends

    def __len__(self) -> int:
        return len(self._times) - self._start + (len(self._counts) if self._counts is not None else 0)

    def next_for(self, policy: Policy, cost: int) -> tuple[int, int]:
        """The first µs at which `cost` more fit `policy`, and the rule that decides it.

        The rule is 0 for the gap, n for the n-th window, BURST, -1 for none.
        """
        times = self._times
        size = len(times) - self._start
        counts = self._counts
        at, rule = 0, -1
        if policy.gap_us:
            last = times[-1] if size else counts.nth(1) if counts is not None else None
            if last is not None:
                at, rule = last + policy.gap_us, 0
        for n, window in enumerate(policy.windows, 1):
            # They fit into (t - interval, t] once the (limit - cost + 1)-th latest send has left it.
            # What costs more than a limit, as the rules have changed, is let go when nothing else counts.
            nth = max(1, window.limit - cost + 1)
            leaves = times[-nth] if nth <= size else counts.nth(nth - size) if counts is not None else None
            if leaves is not None and leaves + window.interval_us > at:
                at, rule = leaves + window.interval_us, n
        if policy.burst is not None:
            opens = self._burst_next(policy.burst, min(cost, policy.burst.limit))
            if opens > at:
                at, rule = opens, BURST
        return at, rule

    def latest(self, n: int) -> int | None:
        """The time of the n-th latest send, from 1; None where there are fewer."""
        size = len(self._times) - self._start
        if n <= size:
            return self._times[-n]
        return self._counts.nth(n - size) if self._counts is not None else None

    def in_window(self, after_us: int, until_us: int | None = None) -> tuple[int, int | None]:
        """How many sends there are after `after_us`, up to `until_us` where given, and when the first of them was."""
        times = self._times
        first = bisect_right(times, after_us, self._start)
        end = len(times) if until_us is None else bisect_right(times, until_us, first)
        folded, earliest = self._counts.after(after_us) if self._counts is not None else (0, None)
        if earliest is None and first < len(times):
            earliest = times[first]
        return folded + end - first, earliest

    def _burst_next(self, burst: Burst, cost: int) -> int:
        bucket = self._bucket or TokenBucket()
        bucket.under(burst)
        first = bisect_right(self._times, bucket.at_us, self._start)
        return bucket.next_for(self._times[first:], burst, cost)

    def record(self, policy: Policy, permit: str, at_us: int, now_us: int, cost: int = 1) -> None:
        """Add a send, and drop those that `policy` can no longer ask for."""
        horizon = policy.horizon_us
        if policy.is_plain:
            self._trim(bisect_right(self._times, now_us - horizon, self._start))
        else:
            self._set_aside(policy, now_us, cost)
        self._insert(permit, at_us, cost)
        self.until_us = at_us + horizon

    def join(self, policy: Policy, permit: str, at_us: int, cost: int) -> None:
        """Add a send of now while rules of others, such as the workers', may ask for longer: nothing is dropped."""
        if policy.burst is not None:
            self._keep_burst(policy.burst, at_us, cost, leaving=False)
        self._insert(permit, at_us, cost)

    def take(self, policy: Policy, permit: str, at_us: int, now_us: int, cost: int) -> None:
        """Add a send, and drop those that neither `policy` nor the longer rules of other callers can ask for."""
        horizon = self._keep(policy.horizon_us, now_us, at_us)
        if policy.is_plain:
            self._trim(bisect_right(self._times, now_us - horizon, self._start))
        elif horizon == policy.horizon_us:
            self._set_aside(policy, now_us, cost)
        elif policy.burst is not None:
            self._keep_burst(policy.burst, now_us, cost, leaving=False)
        self._insert(permit, at_us, cost)

    def _keep(self, kept_us: int, now_us: int, at_us: int) -> int:
        """How long sends are kept; as `kept.lua`."""
        horizon, until = self._horizon_us, self.until_us
        needed = at_us + kept_us
        if kept_us == horizon and until >= needed:
            return horizon
        if kept_us < horizon and until > now_us:
            self._shorter_us = max(self._shorter_us, kept_us)
            self.until_us = max(until, at_us + horizon) if at_us > now_us else until
            return horizon
        if kept_us < horizon:
            kept_us, self._shorter_us = max(kept_us, self._shorter_us), 0
        self._horizon_us = kept_us
        self.until_us = max(until, at_us + kept_us) + kept_us // 8
        return kept_us

    def move(self, permit: str, at_us: int) -> None:
        """Give a send another time, if it has not lapsed."""
        if cost := self.remove(permit):
            self._insert(permit, at_us, cost)

    def remove(self, permit: str) -> int:
        """Take a send back; returns what it cost, or 0 if it is not, or no longer, there."""
        at = self._at.pop(permit, None)
        if at is None:
            return 0
        permits = self._permits
        first = bisect_left(self._times, at, self._start)
        while permits[first] != permit:
            first += 1
        end = first + 1
        while end < len(permits) and permits[end] == permit:
            end += 1
        del self._times[first:end], permits[first:end]
        return end - first

    def _insert(self, permit: str, at: int, cost: int) -> None:
        times, permits = self._times, self._permits
        self._at[permit] = at
        if cost == 1 and (not times or times[-1] <= at):
            times.append(at)
            permits.append(permit)
            return
        # After its equals, so that what one permit cost stays together.
        place = bisect_right(times, at, self._start)
        times[place:place] = [at] * cost
        permits[place:place] = [permit] * cost

    def _set_aside(self, policy: Policy, now: int, cost: int) -> None:
        """Take out what no rule can ask for as itself, into what counts it in another way."""
        times, start = self._times, self._start
        end = min(bisect_right(times, now - policy.exact_us, start), start + MAX_FOLDED)
        leaving = end - start >= MANY
        if policy.burst is not None:
            self._keep_burst(policy.burst, now, cost, leaving=leaving)
        if leaving and policy.precision_us:
            if self._counts is None:
                self._counts = Counts()
            self._counts.fold(times[start:end], policy.precision_us, now - policy.horizon_us)
        if leaving:
            self._trim(end)

    def _keep_burst(self, burst: Burst, now: int, cost: int, *, leaving: bool) -> None:
        bucket = self._bucket or TokenBucket()
        bucket.under(burst)
        first = bisect_right(self._times, bucket.at_us, self._start)
        end = bisect_right(self._times, now - KEPT_US, first)
        if end - first > MAX_FOLDED:  # and all that have the µs of the last of these
            end = bisect_right(self._times, self._times[first + MAX_FOLDED - 1], first)
        sends = self._times[first:end]
        set_back = now <= bucket.at_us  # the clock was: what goes now would never be gone through
        if len(sends) < MANY and not (leaving and sends) and not set_back:
            return
        bucket.keep(sends, burst)
        if set_back:
            bucket.keep([bucket.at_us] * cost, burst)
        self._bucket = bucket

    def _trim(self, end: int) -> None:
        times, permits = self._times, self._permits
        start = self._start
        while start < end:
            self._at.pop(permits[start], None)
            start += 1
        if start >= COMPACT_AT and start * 2 >= len(times):
            del times[:start], permits[:start]
            start = 0
        self._start = start


class MemorySends:
    """A `UserLimiter` in this process, safe for its threads. It gives the answers that `RedisLimiter` gives.

    clock: µs since the epoch, this machine's if none is given. `lock` is held for each answer.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.clock = clock or system_clock
        self.lock = threading.RLock()
        self._sends: dict[tuple[str, str | None], Sends] = {}
        self._sweep_at = SWEEP_AT
        self._permits = count(1)

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.acquire`."""
        return self._ask(user, rules, cost, take=True)

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.peek`."""
        return self._ask(user, rules, cost, take=False)

    def refund(self, permit: Permit) -> bool:
        """See `UserLimiter.refund`."""
        return self.close(permit.user, permit.category, permit.id, None)

    def reset(self, user: str, *categories: str) -> int:
        """See `UserLimiter.reset`."""
        with self.lock:
            forgotten = self._sends.pop((user, None), ())
            for category in categories:
                self._sends.pop((user, category), None)
            return len(forgotten)

    def next_for(self, user: str, category: str | None, policy: Policy, cost: int = 1) -> tuple[int, int]:
        """See `Sends.next_for`; of the user's own sends, or of those of one category. For who holds `lock`."""
        sends = self._sends.get((user, category))
        return sends.next_for(policy, cost) if sends is not None else (0, -1)

    def latest(self, user: str, category: str | None, n: int) -> int | None:
        """See `Sends.latest`; of the user's own sends, or of those of one category. For who holds `lock`."""
        sends = self._sends.get((user, category))
        return None if sends is None else sends.latest(n)

    def in_window(self, key: str, after_us: int, until_us: int | None = None) -> tuple[int, int | None]:
        """See `Sends.in_window`; of what was sent by no category. For who holds `lock`."""
        sends = self._sends.get((key, None))
        return (0, None) if sends is None else sends.in_window(after_us, until_us)

    def new_permit(self) -> str:
        """A permit that no other is called."""
        return str(next(self._permits))

    def take(
        self, user: str, policy: Policy, permit: str, at_us: int, now_us: int, *, cost: int, category: str | None = None
    ) -> None:
        """Record a send, and drop nothing that the rules of other callers may still ask for. For who holds `lock`."""
        sends = self._sends.get((user, category))
        if sends is not None and not policy.is_empty and sends.until_us > at_us + policy.horizon_us:
            sends.join(policy, permit, at_us, cost)
        else:
            self.record(user, category, policy, permit, at_us, now_us, cost)

    def take_for_key(self, key: str, policy: Policy, permit: str, at_us: int, now_us: int, *, cost: int) -> None:
        """See `Sends.take`; of a key whose sends no worker records. For who holds `lock`."""
        if not policy.is_empty:
            sends = self._sends.get((key, None))
            if sends is None:  # an empty one is false
                sends = self._new(key, None, now_us)
            sends.take(policy, permit, at_us, now_us, cost)

    def record(  # noqa: PLR0917 - the hottest call of a simulation: keywords would cost a tenth of it
        self, user: str, category: str | None, policy: Policy, permit: str, at_us: int, now_us: int, cost: int = 1
    ) -> None:
        """See `Sends.record`; nothing is kept for a policy without rules. For who holds `lock`."""
        if policy.is_empty:
            return
        sends = self._sends.get((user, category))
        if sends is None:
            sends = self._new(user, category, now_us)
        sends.record(policy, permit, at_us, now_us, cost)

    def _new(self, user: str, category: str | None, now_us: int) -> Sends:
        if len(self._sends) >= self._sweep_at:
            self._sweep(now_us)
        sends = self._sends[user, category] = Sends()
        return sends

    def close(self, user: str, category: str | None, permit: str, reached_us: int | None) -> bool:
        """Set a permit's time to `reached_us`, or take it back where that is None; False if it has lapsed."""
        found = False
        with self.lock:
            for key in ((user, None), (user, category))[: 1 if category is None else 2]:
                sends = self._sends.get(key)
                if sends is None:
                    continue
                if reached_us is None:
                    found |= sends.remove(permit) > 0
                else:
                    sends.move(permit, reached_us)
        return found

    def _ask(self, user: str, rules: Policy | Rules, cost: int, *, take: bool) -> Permit | Hold:
        policy, category = split(rules)
        check_cost(policy, category, cost)
        name = category.name if category else None
        with self.lock:
            now = self.clock()
            if category is None or not category.bypass:
                at, rule = self.next_for(user, None, policy, cost)
                of_category, of_rule = self.next_for(user, name, category.policy, cost) if category else (0, -1)
                if max(at, of_category) > now:
                    if category is not None and of_category > at:
                        return Hold(of_category - now, describe(category.name, category.policy, of_rule))
                    return Hold(at - now, describe("user", policy, rule))
            permit = Permit(self.new_permit(), user, name, cost, now)
            if take:
                self.take(user, policy, permit.id, now, now, cost=cost)
                if category is not None:
                    self.take(user, category.policy, permit.id, now, now, cost=cost, category=name)
        return permit

    def _sweep(self, now: int) -> None:
        for key in [key for key, sends in self._sends.items() if sends.until_us <= now]:
            del self._sends[key]
        self._sweep_at = max(SWEEP_AT, 2 * len(self._sends))
