"""LimitExceeded, the error for a held key, and the limiter's answers about the usage of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifier.errors import NotifierError
from notifier.limiter.protocol import BLOCKED, UNREACHABLE, Hold
from notifier.rules.policy import Policy
from notifier.units import moment


class LimitExceeded(NotifierError):  # noqa: N818 - the name that other limiters use
    """A key is held. `time_left` (or `retry_after_s`) says how long to wait, and `rule` of `policy` decides it."""

    def __init__(self, key: str, hold: Hold, policy: Policy) -> None:
        why = hold.rule if hold.rule in {UNREACHABLE, BLOCKED} else f"{hold.rule} is used up"
        super().__init__(f"{key}: {why}; try again in {hold.time_left.total_seconds():.3f} s")
        self.key = key
        self.rule = hold.rule
        self.policy = policy
        self.time_left = hold.time_left

    @property
    def retry_after_s(self) -> int:
        """Whole seconds to wait, rounded up, as the header Retry-After gives them."""
        return -(-self.time_left // timedelta(seconds=1))


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a key. per_second: the mean rate over the last `1m`, `1h` and `1d`, counted by the minute."""

    key: str
    total: int
    held: int
    first_used_us: int | None
    last_used_us: int | None
    per_second: Mapping[str, float]

    @property
    def first_used(self) -> datetime | None:
        """When the key was first used; None if no use is known."""
        return _moment(self.first_used_us)

    @property
    def last_used(self) -> datetime | None:
        """When the key was last used; None if no use is known."""
        return _moment(self.last_used_us)


@dataclass(frozen=True, slots=True)
class RankedKey:
    """A key in the answer of `top`. rate: sends per second over the last hour."""

    key: str
    total: int
    last_used_us: int
    held: int
    rate: float

    @property
    def last_used(self) -> datetime | None:
        """When the key was last used; None if it was only ever held."""
        return _moment(self.last_used_us or None)


@dataclass(frozen=True, slots=True)
class Point:
    """How many sends are in the step that begins at `at_us` (µs since the epoch)."""

    at_us: int
    count: int

    @property
    def at(self) -> datetime:
        """When the step begins."""
        return moment(self.at_us)


def _moment(us: int | None) -> datetime | None:
    return None if us is None else moment(us)
