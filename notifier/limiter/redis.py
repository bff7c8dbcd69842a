"""The limiter in Redis: shared by every process, on Redis's own clock."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from redis.exceptions import RedisError

from notifier.errors import LimiterUnreachableError
from notifier.limiter.moves import fenced
from notifier.limiter.protocol import Hold, Permit, check_cost, describe, split
from notifier.limiter.scripts import Call, run, script
from notifier.policies import Rules
from notifier.policy import Category, Policy

_NO_POLICY = Policy()
T = TypeVar("T")


@lru_cache(maxsize=1024)
def policy_array(policy: Policy) -> str:
    """A policy as the scripts read it, see `_rules.lua`: a JSON array of gap, horizon, then limit and interval of each
    window, in µs; and at the end an object, if there are rules of more kinds.
    """
    array: list[Any] = [policy.gap_us, policy.horizon_us]
    for window in policy.windows:
        array += [window.limit, window.interval_us]
    more: dict[str, Any] = {}
    if not policy.is_plain:
        more["e"] = policy.exact_us
    if policy.precision_us:
        more["b"] = policy.precision_us
    if policy.burst is not None:
        more["t"] = [policy.burst.limit, policy.burst.every_us]
    if policy.calendar:
        more["d"] = [[window.limit, window.unit] for window in policy.calendar]
    if policy.quiet is not None:
        more["q"] = [policy.quiet.from_us, policy.quiet.to_us]
    if more:
        array.append(more)
    return json.dumps(array, separators=(",", ":"))


def has_more(array: str) -> bool:
    """Whether a policy, as `policy_array` wrote it, has rules of more kinds than windows and a gap."""
    return array.endswith("}]")


class RedisLimiter:
    """A `UserLimiter` on a `redis.Redis`. One round trip a call; safe from any number of processes and machines.

    Raises LimiterUnreachableError where Redis cannot be asked: then nothing may be sent.
    """

    def __init__(self, redis: Any, *, clock: str = "", fence: Mapping[str, bool] | None = None) -> None:
        """clock: for tests alone, µs since the epoch in place of Redis's clock. fence: see `moves.fenced`."""
        self._fence = fence
        self._redis = redis
        self.clock = clock

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.acquire`."""
        return self._ask(user, rules, cost, take=True)

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.peek`."""
        return self._ask(user, rules, cost, take=False)

    def refund(self, permit: Permit) -> bool:
        """See `UserLimiter.refund`. What waits in the user's lines is looked at again at once."""
        keys = _keys(permit.user, permit.category)
        return bool(self._run(Call(script("refund"), keys, [self.clock, permit.id, permit.cost, permit.user], int)))

    def reset(self, user: str, *categories: str) -> int:
        """See `UserLimiter.reset`. What waits in the user's lines is looked at again at once."""
        return self._run(Call(script("reset"), [], [self.clock, user, *categories], int))

    def _ask(self, user: str, rules: Policy | Rules, cost: int, *, take: bool) -> Permit | Hold:
        policy, category = split(rules)
        check_cost(policy, category, cost)
        # Random, not counted: a user's keys then stand alone in their hash slot.
        permit = secrets.token_urlsafe(8)
        of_category = category.policy if category else _NO_POLICY
        args: list[str | bytes | int] = [
            self.clock,
            permit,
            cost,
            int(take),
            policy_array(policy),
            policy_array(of_category),
            int(category is not None and category.bypass),
        ]

        def decode(reply: list[Any]) -> Permit | Hold:
            now, left, scope, rule = reply
            if not left:
                return Permit(permit, user, category.name if category else None, cost, now)
            return Hold(left, _name(scope, rule, policy, category))

        return self._run(Call(script("acquire"), _keys(user, category.name if category else None), args, decode))

    def _run(self, call: Call[T]) -> T:
        try:
            return run(self._redis, call if self._fence is None else fenced(call, self._fence))
        except RedisError as error:
            raise LimiterUnreachableError(f"the limiter's Redis cannot be asked: {error}") from error


def _keys(user: str, category: str | None) -> list[str]:
    sent = f"notifier:sent:{{{user}}}"
    return [sent, f"{sent}:{category}" if category else sent]


def _name(scope: bytes | str, rule: int, policy: Policy, category: Category | None) -> str:
    if category is not None and scope in (b"category", "category"):
        return describe(category.name, category.policy, rule)
    return describe("user", policy, rule)
