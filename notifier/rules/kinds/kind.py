"""RuleOfSends: the methods that each kind of rule has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from notifier.rules.record import Record
from notifier.units import LARGEST_LIMIT


class Receipt(NamedTuple):
    """A send as it was received: the µs of its first and its last device, and its cost."""

    first_us: int
    last_us: int
    cost: int = 1


class RuleOfSends(ABC):
    """A rule that decides by the times or the number of earlier sends. `str` writes it as people do.

    A policy has any number of windows, and at most one rule of each other kind.
    """

    __slots__ = ()

    @property
    def max_cost(self) -> int:
        """The largest cost that it ever admits."""
        return LARGEST_LIMIT

    @property
    @abstractmethod
    def horizon_us(self) -> int:
        """How long a send matters to it, in microseconds."""

    @property
    def exact_us(self) -> int:
        """How long it needs each send by itself, in microseconds."""
        return self.horizon_us

    @abstractmethod
    def opens(self, sends: Record, cost: int) -> int:
        """The first µs at which `cost` more keep it; 0 if nothing holds them back. `rules.lua` does the same."""

    def used(self, sends: Record, now_us: int) -> int | None:
        """How many of `max_cost` are used up; None if it counts nothing."""
        del sends, now_us
        return None

    @abstractmethod
    def max_in(self, interval_us: int) -> int:
        """The most sends that it ever admits in an interval of this length."""

    @abstractmethod
    def broken(self, receipts: Sequence[Receipt]) -> Iterator[str]:
        """How receipts, the earliest first, break it, for people. It does not use `opens`, so it can test `opens`."""

    @abstractmethod
    def write(self, table: dict[str, Any]) -> None:
        """Write it into a policy of the rule table, as `rules.lua` reads it."""
