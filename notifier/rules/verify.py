"""The laws, measured at the wire: what the simulators saw, held against the rules that were in force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from notifier.rules.evaluator import Sends, opens
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, Policy

ACCEPTED = 200


@dataclass(frozen=True, slots=True)
class Send:
    """One notification as it arrived at the providers: `first_us` and `last_us` over its devices, wall clock.

    ready_us: when it could have gone had there been no limits.
    """

    name: str
    user: str
    category: str
    first_us: int
    last_us: int
    ready_us: int = 0


@dataclass(frozen=True, slots=True)
class Tightness:
    """How near a user came to a rule: the rule, and the largest count or smallest gap that was seen.

    largest: of each window the most that counted in it, a send as much as it costs.
    """

    user: str
    scope: str
    policy: Policy
    sends: int
    largest: tuple[int, ...]
    smallest_gap_us: int | None
    over_burst_us: int = 0

    @property
    def broken(self) -> list[str]:
        """The rules that were broken, for people; empty where the law held."""
        who = f"{self.user} ({self.scope})"
        said = [
            f"{who}: {count} within {window}"
            for count, window in zip(self.largest, self.policy.windows, strict=True)
            if count > window.limit
        ]
        if self.smallest_gap_us is not None and self.smallest_gap_us < self.policy.gap_us:
            said.append(f"{who}: a gap of {self.smallest_gap_us} µs where {self.policy.gap_us} µs is the least")
        if self.over_burst_us and self.policy.burst is not None:
            said.append(f"{who}: {self.policy.burst} exceeded by {self.over_burst_us} µs")
        return said


def largest_count(times_us: Sequence[int], interval_us: int) -> int:
    """The most of these ascending times in any half-open interval `(t - interval, t]`."""
    most = begin = 0
    for end, at in enumerate(times_us):
        while at - times_us[begin] >= interval_us:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def over_burst_us(times_us: Iterable[int], burst: Burst) -> int:
    """How many µs too early the worst of these ascending times was for a token bucket that was full at first."""
    full = over = 0
    for at in times_us:
        full = max(full, at) + burst.every_us
        over = max(over, full - at - burst.limit * burst.every_us)
    return over


def smallest_gap(sends: Sequence[Send]) -> int | None:
    """The least time in µs from the last arrival of a send to the first of the next; None for fewer than two."""
    ordered = sorted(sends, key=lambda send: send.first_us)
    gaps = [after.first_us - before.last_us for before, after in pairwise(ordered)]
    return min(gaps, default=None)


def tightness(sends: Iterable[Send], policies: Policies) -> list[Tightness]:
    """For each user, and for each user and category with rules, how near the sends came to them."""
    groups: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in sends:
        groups[send.user, "user"].append(send)
        groups[send.user, send.category].append(send)
    found = []
    for (user, scope), group in groups.items():
        policy = policies.for_user(user) if scope == "user" else policies.category(scope).policy
        # What bypasses is counted, but nothing held it: it cannot break a rule.
        held = [send for send in group if not policies.category(send.category).bypass]
        if policy.is_empty or not held:
            continue
        times = sorted(send.first_us for send in held for _ in range(policies.category(send.category).cost))
        largest = tuple(largest_count(times, window.interval_us) for window in policy.windows)
        over = over_burst_us(times, policy.burst) if policy.burst else 0
        found.append(Tightness(user, scope, policy, len(held), largest, smallest_gap(held), over))
    return found


def lateness_us(sends: Iterable[Send], policies: Policies) -> list[int]:
    """For each send, how long after the first moment that the rules allowed, given the user's sends before it."""
    before: defaultdict[tuple[str, str], Sends] = defaultdict(Sends)
    late = []
    for send in sorted(sends, key=lambda send: send.first_us):
        rules = policies.rules(send.user, send.category)
        of_user, own = before[send.user, ""], before[send.user, send.category]
        if not rules.category.bypass:
            late.append(send.first_us - max(send.ready_us, opens(rules, of_user, own, send.first_us)[0]))
        for policy, scope in ((rules.user, of_user), (rules.category.policy, own)):
            scope.add(policy, send.name, send.first_us, send.first_us, cost=rules.category.cost)
    return late


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which this share of the values lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def out_of_order(names: Mapping[tuple[str, str], Sequence[str]], sends: Iterable[Send]) -> int:
    """How many sends of a user and category arrived before one that was accepted earlier.

    names: for each (user, category) the names of its notifications in the order of acceptance.
    """
    rank = {name: index for ordered in names.values() for index, name in enumerate(ordered)}
    newest: dict[tuple[str, str], int] = {}
    wrong = 0
    for send in sorted(sends, key=lambda send: send.first_us):
        key = (send.user, send.category)
        if rank[send.name] < newest.get(key, -1):
            wrong += 1
        newest[key] = max(newest.get(key, -1), rank[send.name])
    return wrong
