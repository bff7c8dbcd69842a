"""The rules that hold for a user and a category: plain values, found without I/O."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Final

from notifier.rules.category import DEFAULT_CATEGORY, NO_LIMITS, Category, PlatformLimits
from notifier.rules.hours import closed_minutes, longest_open_us
from notifier.rules.policy import NO_RULES, Policy
from notifier.rules.preferences import Chosen, Mute, Preferences
from notifier.rules.zones import DEFAULT_ZONE

MAX_CHOSEN: Final = 10_000  # results in memory; a full cache is cleared


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one notification: the user's policy, and its category with the category's own."""

    user: Policy
    category: Category

    @property
    def horizon_us(self) -> int:
        """How long a send matters to any of these rules, in microseconds."""
        return max(self.user.horizon_us, self.category.policy.horizon_us)

    @property
    def uses_local_time(self) -> bool:
        """Whether any of them needs the user's zone."""
        return self.user.uses_local_time or self.category.policy.uses_local_time


class Policies:
    """The rules of everyone. This is the one place that says in which order rules are found:

    1. the user's own entry in `users`: rules, or the name of a tier, which stands for the tier's rules;
    2. else the policy of everyone, `user`.

    A user's preferences, which are in Redis, come before both, as far as users may choose: see `chosen`.

    If an entry or a tier leaves out windows or the gap, those of `user` hold (`Policy.replaced`, done by
    the caller once). On top of the user's rules come the category's: both hold at once, neither replaces
    the other. A category that is not configured, or no longer, counts as `default`. `default` always
    exists, and has no rules unless it is configured.

    categories: the configured ones by name, and `default`. everyone: the policy of users without one of their own;
    users: the policies of users with one.
    """

    __slots__ = (
        "_chosen",
        "_default",
        "_under",
        "also_closed",
        "categories",
        "everyone",
        "lead_us",
        "limits",
        "may_choose",
        "tiers",
        "users",
        "uses_local_time",
        "zone",
    )

    def __init__(
        self,
        user: Policy = NO_RULES,
        tiers: Mapping[str, Policy] | None = None,
        users: Mapping[str, Policy | str] | None = None,
        categories: Mapping[str, Category] | None = None,
        limits: Mapping[str, PlatformLimits] | None = None,
        *,
        zone: str = DEFAULT_ZONE,
        lead_us: int = 1,
        users_may: Collection[str] = (),
    ) -> None:
        """Resolve the tiers once; raise KeyError if a user has one that is not among `tiers`.

        limits: by platform. zone: for users without one. lead_us: for how long before quiet hours nothing may go: a
        worker's lease, at whose end the provider has received a send; at least 1, or they hold nothing. users_may: the
        tiers that users may choose.
        """
        self.limits = dict(limits or {})
        self.zone = zone
        self.lead_us = lead_us
        self.tiers: dict[str, Policy] = dict(tiers or {})
        self.everyone = user
        self._under: Mapping[str, Chosen] = {}
        self.users: MutableMapping[str, Policy] = {
            name: self.tiers[rules] if isinstance(rules, str) else rules for name, rules in (users or {}).items()
        }
        self.categories: Mapping[str, Category] = {DEFAULT_CATEGORY: Category(DEFAULT_CATEGORY), **(categories or {})}
        self._default = self.categories[DEFAULT_CATEGORY]
        policies = chain(
            (user,), self.tiers.values(), self.users.values(), (c.policy for c in self.categories.values())
        )
        of_categories = (c.policy for c in self.categories.values() if not c.ignores_quiet and not c.bypass)
        # The minutes of a week that each category closes.
        self.also_closed = {policy.closed_minutes for policy in of_categories}
        self._chosen: dict[tuple[Policy, Preferences], Chosen] = {}
        self.may_choose = {name: policy for name, policy in self.tiers.items() if name in users_may}
        self.uses_local_time = any(policy.uses_local_time for policy in policies)

    def knows(self, name: str) -> bool:
        """Whether the category is configured, or is `default`."""
        return name in self.categories

    def limits_of(self, platform: str) -> PlatformLimits:
        """Return the platform's own limits."""
        return self.limits.get(platform, NO_LIMITS)

    def for_user(self, user: str) -> Policy:
        """Return the policy in force for a user."""
        return self.users.get(user, self.everyone)

    def chosen(self, user: str, preferences: Preferences) -> Chosen:
        """Return the rules of a user who has these preferences, in the place of `for_user`."""
        both = self.for_user(user), preferences
        if (found := self._chosen.get(both)) is None:
            if len(self._chosen) >= MAX_CHOSEN:
                self._chosen.clear()
            found = self._chosen[both] = self._with(user, preferences)
        return found

    def _with(self, user: str, preferences: Preferences) -> Chosen:
        policy = self.may_choose.get(preferences.tier or "", self.for_user(user))
        windows = (*policy.windows, *policy.calendar, *(preferences.windows or ()))
        own = () if self.is_void(user, preferences) else preferences.quiet_hours or ()
        gap_us = max(policy.gap_us, preferences.gap_us or 0)
        policy = policy.replaced(windows, gap_us=gap_us, quiet=(*policy.quiet, *own))
        return Chosen(policy, None if preferences.unknown_zone else preferences.zone, preferences.mutes)

    def is_void(self, user: str, preferences: Preferences) -> bool:
        """Whether the chosen quiet hours do not count: together with all other hours they leave no time to send."""
        if preferences.quiet_hours is None:
            return False
        policy = self.may_choose.get(preferences.tier or "", self.for_user(user))
        closed = closed_minutes((*policy.quiet, *preferences.quiet_hours), policy.send)
        return any(longest_open_us(closed | also) <= self.lead_us for also in self.also_closed)

    def under(self, preferences: Mapping[str, Preferences]) -> Policies:
        """Return these rules with some users' preferences in force."""
        made = copy(self)
        made._put_under({user: self.chosen(user, each) for user, each in preferences.items()})  # noqa: SLF001 - its own kind
        return made

    def _put_under(self, chosen: Mapping[str, Chosen]) -> None:
        self._under = chosen
        self.users = ChainMap({user: each.policy for user, each in chosen.items()}, self.users)
        self.uses_local_time |= any(each.policy.uses_local_time for each in chosen.values())

    def zone_of(self, user: str) -> str:
        """Return the zone of a user whose notification names none; see `under`."""
        chosen = self._under.get(user)
        return chosen.zone if chosen and chosen.zone else self.zone

    def muted(self, user: str, category: str, now_us: int) -> Mute | None:
        """The mute that holds a category of a user the longest; a mute that drops goes first. See `under`."""
        chosen = self._under.get(user)
        if chosen is None or self.category(category).bypass:
            return None
        mutes = [mute for mute in chosen.mutes if mute.holds(category, now_us)]
        return max(mutes, key=lambda mute: (mute.what == "drop", mute.until_us), default=None)

    def category(self, name: str) -> Category:
        """Return the category of that name; `default` if the name is not known."""
        return self.categories.get(name, self._default)

    def rules(self, user: str, category: str) -> Rules:
        """Return the rules of a notification of this category for this user."""
        return Rules(self.for_user(user), self.category(category))
