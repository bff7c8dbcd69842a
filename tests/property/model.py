"""What each rule means, by counting: whether so much more may go at a moment, and whether receipts keep the rules."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from notifier.rules.kinds.kind import Receipt
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
    """Where the receipts at the provider break a policy, in words; law 1 says that this is empty.

    By counting here, and by what each kind of rule says of itself.
    """
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
    receipts = [Receipt(at, at) for at in ordered]
    return [*found, *(how for rule in policy.rules for how in rule.broken(receipts))]
