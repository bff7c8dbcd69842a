"""Whether what a category costs can ever fit."""

from __future__ import annotations

from typing import Final

from notifier.errors import InvalidNotificationError
from notifier.rules.policy import Category, Policy
from notifier.units import LARGEST_LIMIT


def check_fits(user: Policy, category: Category) -> None:
    """Raise InvalidNotificationError where this user's rules, or the category's, never admit one of the category."""
    if category.cost == 1 or category.bypass:
        return
    try:
        check_cost(user, category, category.cost)
    except ValueError as error:
        raise InvalidNotificationError("category", f"{category.name!r} never goes to this user: {error}") from None


MAX_COST: Final = 100  # each is an entry in Redis; and no more are taken out again at once


def check_cost(user: Policy, category: Category | None, cost: int) -> None:
    """Raise ValueError for rules that only the workers keep, and for a cost that no window ever admits."""
    if user.uses_local_time or (category is not None and category.policy.uses_local_time):
        raise ValueError(
            "quiet hours and calendar windows need a time zone, which acquire does not have: pass"
            " policy.without_local_time"
        )
    for policy in (user, category.policy) if category else (user,):
        check_fits_all(policy, cost, MAX_COST)


def check_fits_all(policy: Policy, cost: int, most: int = LARGEST_LIMIT) -> None:
    """Raise ValueError for what is no cost, or one that some rule never admits."""
    if type(cost) is not int or not 1 <= cost <= most:
        raise ValueError(f"cost must be a whole number from 1 to {most}, is {cost!r}")
    for rule in policy.listed:
        if cost > rule.max_cost:
            raise ValueError(f"a cost of {cost} never fits into {rule}")
