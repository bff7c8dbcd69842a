"""The plain model: lists of sends and brute force, so simple that it can be seen to be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifier.rules.policy import Policy


@dataclass(slots=True)
class Send:
    """One send as the rules judge it: in flight it stands at the end of its lease, then where it was settled."""

    permit: str
    at_us: int
    cost: int = 1


@dataclass(slots=True)
class Sends:
    """The sends that one policy judges."""

    policy: Policy
    all: list[Send] = field(default_factory=list)

    def admits(self, t: int, cost: int = 1) -> bool:
        """Whether `cost` more may go at `t`: no window holds too many then, and the gap is over."""
        return all(self._keeps(rule, t, cost) for rule in range(len(self.policy.windows) + 1))

    def _keeps(self, rule: int, t: int, cost: int) -> bool:
        if rule == 0:
            gap = self.policy.gap_us
            return gap == 0 or all(t - send.at_us >= gap for send in self.all)
        window = self.policy.windows[rule - 1]
        # Those in the future count as well: they are in flight, or the clock was set back.
        inside = sum(send.cost for send in self.all if send.at_us > t - window.interval_us)
        return inside + cost <= window.limit

    def earliest(self, cost: int = 1) -> tuple[int, int]:
        """The first µs at which each rule would let `cost` pass; the latest of them, and the rule (-1: none).

        A rule can open only when some send leaves it, so these moments are all that need to be tried.
        """
        latest, deciding = 0, -1
        for rule in range(len(self.policy.windows) + 1):
            length = self.policy.windows[rule - 1].interval_us if rule else self.policy.gap_us
            moments = [0, *sorted(send.at_us + length for send in self.all)]
            at = next(t for t in moments if self._keeps(rule, t, cost))
            if at > latest:
                latest, deciding = at, rule
        return latest, deciding

    def add(self, send: Send, now: int) -> None:
        """Record a send; what the policy cannot ask for any more is forgotten, as the limiters do."""
        if not self.policy.is_empty:
            self.all = [old for old in self.all if old.at_us > now - self.policy.horizon_us]
            self.all.append(send)

    def take_back(self, permit: str) -> bool:
        """Forget one send."""
        before = len(self.all)
        self.all = [send for send in self.all if send.permit != permit]
        return len(self.all) < before

    def move(self, permit: str, at_us: int) -> None:
        """Give a send its time."""
        for send in self.all:
            if send.permit == permit:
                send.at_us = at_us


def violations(policy: Policy, times: Iterable[int]) -> list[str]:
    """Where the receipts at the provider break a policy, in words; law 1 says that this is empty."""
    ordered = sorted(times)
    found = [
        f"{after - before} µs after the last, the gap is {policy.gap_us}"
        for before, after in pairwise(ordered)
        if after - before < policy.gap_us
    ]
    for window in policy.windows:
        for end in ordered:
            inside = sum(1 for t in ordered if end - window.interval_us < t <= end)
            if inside > window.limit:
                found.append(f"{inside} in the window {window} that ends at {end}")
    if policy.burst is not None:
        limit, every = policy.burst.limit, policy.burst.every_us
        for first, start in enumerate(ordered):
            for n, end in enumerate(ordered[first:], 1):
                if n > limit + (end - start) // every:
                    found.append(f"{n} from {start} to {end} under {policy.burst}")
    return found
