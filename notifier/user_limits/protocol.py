"""The promises of the limiter of users, whichever store it keeps their sends in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from notifier.limiter.protocol import Hold, Permit
from notifier.rules.category import Category
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Policy


@dataclass(frozen=True, slots=True)
class UserPermit(Permit):
    """The right to send one notification to a user. category: whose rules admitted it too."""

    category: str | None = None

    @property
    def user(self) -> str:
        """The user who gets it."""
        return self.key


class UserLimiter(Protocol):
    """Windows and a gap, of the user and of the category, all or nothing, in one atomic step.

    `rules` is a Policy for the user alone, or Rules for user and category together. Time is the limiter's own.
    A refused attempt is not a send: asking again and again never pushes the next moment away.
    Raises InvalidNotificationError for a user that no notification could have.
    """

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """Take the right to send now, or learn how long is left.

        cost: how many sends it counts for in every window, 100 at most. Raises ValueError where it can never fit.
        """
        ...

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """Return what `acquire` would answer, without taking anything."""
        ...

    def refund(self, permit: UserPermit) -> bool:
        """Take a permit back because nothing reached the user; False if it has lapsed or was refunded before."""
        ...

    def reset(self, user: str, *categories: str) -> int:
        """Forget a user's sends, those of `categories` too; returns how many were forgotten."""
        ...


def split(rules: Policy | Rules) -> tuple[Policy, Category | None]:
    """The user's policy and the category, if there is one."""
    match rules:
        case Policy():
            return rules, None
        case Rules(user=Policy(), category=Category()):
            return rules.user, rules.category
    raise TypeError("rules are a Policy, or Rules(policy, category) with a Category: notifier.policies.category(name)")


def kept_for(user: str, rules: Policy | Rules, policies: Policies) -> Policy | Rules:
    """The same rules, whose sends are kept for as long as the workers' rules need them.

    Raises TypeError for what is none, and ValueError for rules that only the workers keep.
    """
    policy, category = split(rules)
    policy = _kept(policy, policies.for_user(user))
    if category is None:
        return policy
    return Rules(policy, replace(category, policy=_kept(category.policy, policies.category(category.name).policy)))


def _kept(policy: Policy, other: Policy) -> Policy:
    if policy.uses_local_time:
        raise ValueError(
            "quiet hours and calendar windows need a time zone, which acquire does not have: pass"
            " policy.without_local_time"
        )
    return policy if policy.horizon_us >= other.horizon_us else replace(policy, kept_us=other.horizon_us)
