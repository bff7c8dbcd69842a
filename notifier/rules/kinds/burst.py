"""The burst: a token bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from notifier.rules.kinds.kind import Receipt, RuleOfSends
from notifier.rules.record import MAX_TAKEN_IN, Record
from notifier.units import checked_limit, format_duration, interval_of


@dataclass(frozen=True, slots=True, init=False)
class Burst(RuleOfSends):
    """At most `limit` at once, then one more every `every_us` microseconds: `Burst(20, "3m")`."""

    limit: int
    every_us: int

    def __init__(self, limit: int, every: str | timedelta | None = None, *, every_us: int | None = None) -> None:
        """Give the time as text or as a timedelta, or in microseconds by name, 1 at least."""
        object.__setattr__(self, "limit", checked_limit(limit))
        object.__setattr__(self, "every_us", interval_of(f"Burst({limit}", every, every_us, least_us=1))

    @property
    def max_cost(self) -> int:
        return self.limit

    @property
    def horizon_us(self) -> int:
        """How long a send matters to it, in microseconds: until an empty bucket is full."""
        return self.limit * self.every_us

    def full_after(self, full_us: int, sends: Iterable[tuple[int, int]]) -> int:
        """When the bucket is full again after these sends (µs, cost), the earliest first."""
        for at, cost in sends:
            full_us = min(max(full_us, at) + cost * self.every_us, at + self.horizon_us)
        return full_us

    def state_at(self, sends: Record, us: int) -> tuple[int, int]:
        """Its state after all sends up to `us`, see `Record.bursts`."""
        full, till = sends.bursts.get(self, (0, 0))
        back = max(0, till - us)  # if the clock was set back, the bucket stays as full as it was
        full, taken = full - back, sends.between(till - back, us)
        if not taken:
            return full, till - back
        if len(taken) == MAX_TAKEN_IN:  # the rule is new: the bucket counts as empty at the first of them
            full = taken[0][0] + self.horizon_us
        return self.full_after(full, taken), us

    def opens(self, sends: Record, cost: int) -> int:
        full, till = sends.bursts.get(self, (0, 0))
        at, last = self.opens_from(full, till, sends, cost), sends.latest(1)
        # A send that bypasses the rules leaves the bucket empty at worst.
        return min(at, last + cost * self.every_us) if last is not None and last > till else at

    def opens_from(self, full_us: int, till_us: int, sends: Record, cost: int) -> int:
        """As `opens`, by a state of the bucket, see `Record.bursts`.

        Nobody knows when the provider receives the sends in flight. As many of them as leave room for `cost` hold
        nothing back; the others count at the ends of their leases.
        """
        later, free = sends.after(till_us), max(0, self.limit - cost)
        rest = later - free
        for at, costs in sends.between(till_us, most=later) if rest > 0 else ():
            if rest > 0:
                full_us = self.full_after(full_us, [(at, min(rest, costs))])
            rest -= costs
        return full_us - max(0, free - later) * self.every_us

    def used(self, sends: Record, now_us: int) -> int:
        """How many tokens are missing: by the time until the bucket is full, as one token comes each `every_us`."""
        return -(-max(0, self.opens(sends, self.limit) - now_us) // self.every_us)

    def max_in(self, interval_us: int) -> int:
        return (interval_us - 1) // self.every_us + self.limit

    def broken(self, receipts: Sequence[Receipt]) -> Iterator[str]:
        """How receipts break it, for people: by the largest overdraft of a bucket that was full at first."""
        full = over = 0
        for receipt in receipts:
            full = max(full, receipt.first_us) + receipt.cost * self.every_us
            over = max(over, full - receipt.first_us - self.horizon_us)
        if over:
            yield f"{self} exceeded by {over} µs"

    def write(self, table: dict[str, Any]) -> None:
        table["burst"] = [self.limit, self.every_us]

    def __str__(self) -> str:
        return f"burst {self.limit} then 1/{format_duration(self.every_us)}"
