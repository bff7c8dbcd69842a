"""What a limiter promises, whichever store it keeps its sends in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from notifier.rules.policies import Rules
from notifier.rules.policy import Category, Policy
from notifier.units import format_duration

BURST: Final = -2  # among the numbers of rules, see _rules.lua


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to send once, recorded at `at_us` (µs since the epoch on the limiter's clock).

    id: '' where nobody was asked, see `on_error`. remaining: how many more the windows admit now, where the limiter
    says so. reset_after_us: see `reset_after`. wait_us: how long until `at_us`, for a permit that was asked for ahead.
    rule: the window with the least room.
    """

    id: str
    user: str
    category: str | None
    cost: int
    at_us: int
    remaining: int | None = None
    reset_after_us: int | None = None
    wait_us: int = 0
    rule: str = ""

    @property
    def key(self) -> str:
        """What was limited: a user, an address, or whatever the caller chose."""
        return self.user

    @property
    def reset_after(self) -> timedelta | None:
        """How long until the window with the least room has more; None where no window holds."""
        return None if self.reset_after_us is None else timedelta(microseconds=self.reset_after_us)


@dataclass(frozen=True, slots=True)
class Hold:
    """Not yet: `time_left_us` microseconds are left, and `rule` is the one that decides it.

    policy and key: what was asked, where the limiter of a namespace says so.
    """

    time_left_us: int
    rule: str
    policy: Policy | None = field(default=None, repr=False, compare=False)
    key: str = field(default="", repr=False, compare=False)

    @property
    def time_left(self) -> timedelta:
        """The time left, rounded up to the microsecond."""
        return timedelta(microseconds=self.time_left_us)


class UserLimiter(Protocol):
    """Windows and a gap, of the user and of the category, all or nothing, in one atomic step.

    `rules` is a Policy for the user alone, or Rules for user and category together. Time is the limiter's own.
    A refused attempt is not a send: asking again and again never pushes the next moment away.
    """

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """Take the right to send now, or learn how long is left.

        cost: how many sends it counts for in every window, 100 at most. Raises ValueError where it can never fit.
        """
        ...

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """What `acquire` would answer, without taking anything."""
        ...

    def refund(self, permit: Permit) -> bool:
        """Take a permit back because nothing reached the user; False if it has lapsed or was refunded before."""
        ...

    def reset(self, user: str, *categories: str) -> int:
        """Forget a user's sends, those of `categories` too; returns how many were forgotten."""
        ...


def split(rules: Policy | Rules) -> tuple[Policy, Category | None]:
    """The user's policy and the category, if there is one."""
    return (rules, None) if isinstance(rules, Policy) else (rules.user, rules.category)


def describe(scope: str, policy: Policy, rule: int) -> str:
    """The name of a rule for people: 'user 10/1m', 'chat gap 1.5s'. rule: 0 is the gap, n the n-th window, or BURST."""
    if rule == BURST:
        return f"{scope} {policy.burst}"
    return f"{scope} gap {format_duration(policy.gap_us)}" if rule == 0 else f"{scope} {policy.windows[rule - 1]}"
