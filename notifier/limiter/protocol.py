"""Permit and Hold: the answers of a limiter, in Redis or in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

from notifier.rules.policy import Policy

BURST: Final = -2  # a rule's number, see limit_rules.lua
BLOCK: Final = -3
UNREACHABLE: Final = "the limiter cannot be asked"  # the rule of a Hold, see `on_error`
BLOCKED: Final = "blocked"  # the rule of a Hold, see `block`


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to go once, recorded for `key` at `at_us` (µs since the epoch on the limiter's clock).

    id: '' if Redis was not asked, see `on_error`.
    remaining: how many more the windows allow now; None if the limiter does not say.
    reset_after_us: see `reset_after`.
    wait_us: how long until `at_us`, for a reserved permit.
    rule: the window that leaves the fewest sends.
    """

    id: str
    key: str
    cost: int
    at_us: int
    remaining: int | None = None
    reset_after_us: int | None = None
    wait_us: int = 0
    rule: str = ""

    def __bool__(self) -> Literal[True]:
        return True

    @property
    def reset_after(self) -> timedelta | None:
        """The time until the window that leaves the fewest allows more; None if there is no window."""
        return None if self.reset_after_us is None else timedelta(microseconds=self.reset_after_us)

    @property
    def wait(self) -> timedelta:
        """The time until a reserved permit counts; 0 for any other."""
        return timedelta(microseconds=self.wait_us)


@dataclass(frozen=True, slots=True)
class Hold:
    """A refusal: wait for `time_left_us` microseconds. `rule` is the rule that decides it.

    `policy` and `key` are those of the request, if a limiter by key answered. A Hold is false, so you can write `if
    limiter.acquire(…):`.
    """

    time_left_us: int
    rule: str
    policy: Policy | None = field(default=None, repr=False, compare=False)
    key: str = field(default="", compare=False)

    def __bool__(self) -> Literal[False]:
        return False

    @property
    def time_left(self) -> timedelta:
        """The time left, rounded up to the microsecond."""
        return timedelta(microseconds=self.time_left_us)
