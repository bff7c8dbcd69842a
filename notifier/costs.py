"""Whether what a category costs can ever fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.errors import InvalidNotificationError
from notifier.limiter.protocol import check_cost

if TYPE_CHECKING:
    from notifier.policy import Category, Policy


def check_fits(user: Policy, category: Category) -> None:
    """Raise InvalidNotificationError where this user's rules, or the category's, never admit one of the category."""
    if category.cost == 1 or category.bypass:
        return
    try:
        check_cost(user, category, category.cost)
    except ValueError as error:
        raise InvalidNotificationError("category", f"{category.name!r} never goes to this user: {error}") from None
