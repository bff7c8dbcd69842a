"""The limiter in Redis: shared by every process, on Redis's own clock."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from notifier.errors import LimiterUnreachableError
from notifier.limiter.protocol import Hold
from notifier.notification.notification import check_user
from notifier.rules.category import check_cost
from notifier.rules.marks import rule_words
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import NO_RULES, Policy
from notifier.scripts.connection_wait import in_turn
from notifier.scripts.keys import user_key
from notifier.scripts.loader import Call, run, script
from notifier.scripts.records import AcquireFields
from notifier.scripts.rule_table import policy_json
from notifier.store.partitions import Partitions
from notifier.units import from_bytes, to_bytes
from notifier.user_limits.choice import Choice, Stale
from notifier.user_limits.protocol import UserPermit, kept_for, split

T = TypeVar("T")


class RedisLimiter:
    """A `UserLimiter` on a `redis.Redis`. One round trip a call; safe from any number of processes and machines.

    Raises LimiterUnreachableError where Redis cannot be asked: then nothing may be sent.
    """

    def __init__(self, redis: Any, *, policies: Callable[[], Policies] = Policies, clock: str = "") -> None:
        """policies: the workers' rules; what is acquired is kept for as long as these need it.

        clock: for tests alone, µs since the epoch in place of Redis's clock.
        """
        self._partitions = Partitions.around(redis)
        self._policies = policies
        self.clock = clock

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """See `UserLimiter.acquire`."""
        return self._ask(user, lambda: acquire_call(user, rules, cost, self._policies(), self.clock, take=True))

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """See `UserLimiter.peek`."""
        return self._ask(user, lambda: acquire_call(user, rules, cost, self._policies(), self.clock, take=False))

    def refund(self, permit: UserPermit) -> bool:
        """See `UserLimiter.refund`. What waits in the user's backlogs is looked at again at once."""
        return self._ask(permit.user, lambda: refund_call(permit, self.clock))

    def reset(self, user: str, *categories: str) -> int:
        """See `UserLimiter.reset`. What waits in the user's backlogs is looked at again at once."""
        return self._ask(user, lambda: reset_call(user, categories, self.clock))

    def _ask(self, user: str, make: Callable[[], Call[T]]) -> T:
        try:
            with self._partitions.at(check_user(user)) as redis:
                call = make()
                return in_turn(redis, lambda: run(redis, call))
        except RedisError as error:
            raise LimiterUnreachableError(f"Redis cannot be used by the limiter: {error}") from error


def acquire_call(
    user: str, rules: Policy | Rules, cost: int, policies: Policies, clock: str = "", *, take: bool
) -> Call[UserPermit | Hold]:
    """See `UserLimiter.acquire`; without `take`, `UserLimiter.peek`. policies: as of `RedisLimiter`."""
    kept = kept_for(user, rules, policies)
    check_cost(*split(kept), cost)
    return _acquire_call(user, kept, cost, clock, take=take)


def acquire_by_choice(user: str, choice: Choice, clock: str = "") -> Call[UserPermit | Hold | Stale]:
    """See `Notifier.acquire`; the reply is Stale where the user's choice is not, or no longer, that one."""
    call = _acquire_call(user, choice.rules, choice.rules.category.cost, clock, choice)

    def decode(reply: list[Any]) -> UserPermit | Hold | Stale:
        now, left, *rest = reply
        return Stale(from_bytes(rest[0]), now) if left < 0 else call.decode(reply)

    return Call(call.script, call.keys, call.args, decode)


def _acquire_call(
    user: str, rules: Policy | Rules, cost: int, clock: str, choice: Choice | None = None, *, take: bool = True
) -> Call[UserPermit | Hold]:
    policy, category = split(rules)
    # Random, not counted: a user's keys then stand alone in their hash slot.
    permit = secrets.token_urlsafe(8)
    of_category = category.policy if category else NO_RULES
    args = AcquireFields(
        *(clock, permit, cost),
        take=int(take),
        rules=policy_json(policy),
        of_category=policy_json(of_category),
        bypass=int(category is not None and category.bypass),
        user=to_bytes(user),
        chosen=to_bytes(choice.encode()) if choice else "",
    )

    def decode(reply: list[Any]) -> UserPermit | Hold:
        now, left, scope, rule = reply
        if not left:
            return UserPermit(permit, user, cost, now, category=category.name if category else None)
        word = from_bytes(scope)
        if choice is not None and word not in {"user", "category"}:
            return Hold(left, choice.describe(word, rule, now + left))
        owner = category.name if category is not None and word == "category" else "user"
        return Hold(left, f"{owner} {rule_words(from_bytes(rule))}")

    return Call(script("acquire"), _keys(user, category.name if category else None), args, decode)


def refund_call(permit: UserPermit, clock: str = "") -> Call[bool]:
    """See `UserLimiter.refund`."""
    keys = _keys(permit.user, permit.category)
    return Call(script("refund"), keys, [clock, permit.id, permit.cost, permit.user], bool)


def reset_call(user: str, categories: Sequence[str], clock: str = "") -> Call[int]:
    """See `UserLimiter.reset`."""
    return Call(script("reset"), [], [clock, user, *categories], int)


def _keys(user: str, category: str | None) -> list[str]:
    sent = user_key("sent", user)
    return [sent, f"{sent}:{category}" if category else sent]
