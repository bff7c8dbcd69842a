"""Permits of `Notifier.acquire`: the right to send to a user now, outside of the workers, by the same rules."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from notifier.errors import LimiterUnreachableError, RedisUnusableError
from notifier.forecast.replay import NEVER
from notifier.limiter import Hold, Permit
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.rules.evaluator import after_limits
from notifier.rules.marks import rule_words
from notifier.rules.policies import Policies, Rules
from notifier.rules.preferences import Mute, Preferences
from notifier.rules.quiet_hours import ByClock, Decider, Latest, Scope, said
from notifier.rules.zones import Unit, Zone, zone_or
from notifier.scripts.keys import user_key
from notifier.scripts.loader import Call, script
from notifier.scripts.records import AcquireFields
from notifier.scripts.rule_table import policy_json
from notifier.units import from_bytes, to_bytes

LEAD_US: Final = 1  # a caller with a permit sends at once


@dataclass(frozen=True, slots=True)
class UserPermit(Permit):
    """The right to send one notification to a user. category: its rules allowed it too."""

    category: str = DEFAULT_CATEGORY

    @property
    def user(self) -> str:
        """The user who gets it."""
        return self.key


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a permit, at a moment.

    rules: with the user's choices. mute: the mute that holds it back, or None. zone: the zone whose clock decides; None
    if no rule goes by the clock.
    """

    user: str
    rules: Rules
    now_us: int
    mute: Mute | None = None
    zone: Zone | None = field(default=None, repr=False)

    @classmethod
    def of(cls, policies: Policies, user: str, category: str, preferences: Preferences, now_us: int) -> Asked:
        """policies: of the configuration. preferences: what the user chose."""
        chosen = policies.chosen(user, preferences)
        rules = Rules(chosen.policy, policies.category(category))
        if rules.category.bypass:
            return cls(user, rules, now_us)
        mutes = [mute for mute in chosen.mutes if mute.holds(category, now_us)]
        mute = max(mutes, key=lambda each: each.until_us, default=None)
        zone = zone_or(chosen.zone, policies.zone, now_us) if rules.uses_local_time else None
        return cls(user, rules, now_us, mute, zone)

    def clock(self, of_user: Latest, of_category: Latest) -> ByClock | None:
        """The rules by the clock, or None. Nothing has waited, so there is no pace after quiet hours."""
        if self.zone is None:
            return None
        return ByClock(self.rules, self.zone, NEVER, LEAD_US, of_user, of_category)

    def hold(self, at_us: int, by: Decider, now_us: int) -> Hold:
        return Hold(max(1, at_us - now_us), said(by, self.rules.category.name, at_us, self.zone))

    def after_limits(self, at_us: int, by: Decider | None) -> tuple[int, Decider | None]:
        """When a permit is possible that the limits hold back until `at_us`: the mute and the hours count, too."""
        hours = self.clock(_none, _none)  # the script counts for the calendar windows
        return after_limits(at_us, by, self.now_us, self.mute, hours)

    def days(self) -> dict[Unit, tuple[int, int]]:
        """The begin and the end of the present day, week or month, for each unit of a calendar window."""
        if self.zone is None:
            return {}
        policies = self.rules.user, self.rules.category.policy
        found: dict[Unit, tuple[int, int]] = {}
        for window in (window for policy in policies for window in policy.calendar):
            begins = self.zone.next_start(window.unit, self.now_us - 2 * window.horizon_us)
            while (ends := self.zone.next_start(window.unit, begins)) <= self.now_us:
                begins = ends
            found[window.unit] = begins, ends
        return found


@contextmanager
def reached() -> Iterator[None]:
    """Raise LimiterUnreachableError if Redis is away: then nothing may be sent."""
    try:
        yield
    except RedisUnusableError as error:
        raise LimiterUnreachableError(str(error)) from error


def _none(_n: int) -> None:
    """No send."""


def acquire(asked: Asked, clock: str = "", *, take: bool = True) -> Call[UserPermit | Hold]:
    """See `Notifier.acquire`. take: False asks, but records no permit."""
    user, rules, category = asked.user, asked.rules, asked.rules.category
    # Random, and not from a counter: then the call needs no key outside the user's hash slot.
    permit = secrets.token_urlsafe(8)
    is_shut = asked.after_limits(0, None)[0] > asked.now_us
    args = AcquireFields(
        *(clock, permit, category.cost),
        take=int(take and not is_shut),
        rules=policy_json(rules.user),
        of_category=policy_json(category.policy),
        bypass=int(category.bypass),
        user=to_bytes(user),
        days=json.dumps(asked.days()),
    )

    def decode(reply: list[Any]) -> UserPermit | Hold:
        now, left, scope, rule = reply
        if not left and not is_shut:
            return UserPermit(permit, user, category.cost, now, category=category.name)
        limits = (now + left, _decider(rules, cast("Scope", from_bytes(scope)), rule)) if left else (0, None)
        at, by = asked.after_limits(*limits)
        assert by is not None
        return asked.hold(at, by, now)

    return Call(script("acquire"), _keys(user, category.name), args, decode)


def refund(permit: UserPermit, clock: str = "") -> Call[bool]:
    keys = _keys(permit.user, permit.category)
    return Call(script("refund"), keys, [clock, permit.id, permit.cost, permit.user], bool)


def _decider(rules: Rules, scope: Scope, rule: bytes | int) -> Decider:
    """The deciding rule in a reply of *acquire*."""
    if isinstance(rule, int):
        policy = rules.user if scope == "user" else rules.category.policy
        return scope, policy.calendar[rule]
    return scope, rule_words(from_bytes(rule))


def _keys(user: str, category: str) -> list[str]:
    return [user_key("sent", user), user_key("sent", user, category)]
