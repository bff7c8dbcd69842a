"""What each rule means, by counting: whether so much more may go at a moment, and whether receipts keep the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.rules.kinds.kind import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from notifier.rules.policy import Policy


def admits(policy: Policy, sends: Sequence[tuple[int, int]], at_us: int, cost: int = 1) -> bool:
    """Whether the gap and the windows let `cost` more go, after sends (µs, cost).

    Those in the future count as well: they are in flight, or the clock was set back.
    """
    if policy.gap_us and any(at_us - at < policy.gap_us for at, _ in sends):
        return False
    inside = [sum(n for at, n in sends if at > at_us - window.interval_us) for window in policy.windows]
    return all(count + cost <= window.limit for count, window in zip(inside, policy.windows, strict=True))


def violations(policy: Policy, times: Iterable[int]) -> list[str]:
    """Where the receipts at the provider break a policy, in words; law 1 says that this is empty."""
    receipts = [Receipt(at, at) for at in sorted(times)]
    return [how for rule in policy.rules for how in rule.broken(receipts)]
