"""MemoryUserLimiter: a `UserLimiter` without Redis, for the code that tests call."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from notifier.limiter import Hold
from notifier.notification.notification import check_user
from notifier.rules.category import Category, check_cost
from notifier.rules.evaluator import Sends, opens
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Policy
from notifier.rules.preferences import Mute
from notifier.rules.quiet_hours import ByClock, said
from notifier.user_limits.protocol import UserPermit, kept_for, split


class MemoryUserLimiter:
    """A `UserLimiter` in this process, safe for its threads. It gives the answers that `RedisLimiter` gives.

    clock: µs since the epoch. policies: as of `RedisLimiter`. sends: of each user, under None, and of each category.
    """

    def __init__(self, clock: Callable[[], int], *, policies: Callable[[], Policies] = Policies) -> None:
        self.clock = clock
        self._policies = policies
        self.sends: defaultdict[str, defaultdict[str | None, Sends]] = defaultdict(lambda: defaultdict(Sends))
        self._lock = threading.Lock()
        self._permits = count(1)

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """See `UserLimiter.acquire`."""
        return self._checked(user, rules, cost, take=True)

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """See `UserLimiter.peek`."""
        return self._checked(user, rules, cost, take=False)

    def _checked(self, user: str, rules: Policy | Rules, cost: int, *, take: bool) -> UserPermit | Hold:
        kept = kept_for(check_user(user), rules, self._policies())
        check_cost(*split(kept), cost)
        return self.ask(user, kept, cost, take=take)

    def refund(self, permit: UserPermit) -> bool:
        """See `UserLimiter.refund`."""
        with self._lock:
            return sum(self.sends[permit.user][name].remove(permit.id) for name in {None, permit.category}) > 0

    def reset(self, user: str, *categories: str) -> int:
        """See `UserLimiter.reset`."""
        user = check_user(user)
        with self._lock:
            forgotten = len(self.sends[user][None])
            for name in (None, *categories):
                self.sends[user].pop(name, None)
        return forgotten

    def ask(
        self,
        user: str,
        rules: Policy | Rules,
        cost: int,
        *,
        take: bool,
        mute: Mute | None = None,
        clock: ByClock | None = None,
    ) -> UserPermit | Hold:
        """Answer as `acquire`, or `peek`. mute, clock: see `evaluator.opens`."""
        policy, category = split(rules)
        rules = Rules(policy, replace(category or Category(""), cost=cost))
        with self._lock:
            now, scopes = self.clock(), [(policy, self.sends[user][None])]
            if category is not None:
                scopes.append((category.policy, self.sends[user][category.name]))
            for each, sends in scopes if not rules.category.bypass else ():
                if each.burst is not None:
                    sends.take_in(each.burst, now)
            at, by = opens(rules, scopes[0][1], scopes[-1][1], now, mute=mute, clock=clock)
            if by is not None and at > now:
                return Hold(at - now, said(by, rules.category.name, at, None if clock is None else clock.zone))
            permit = UserPermit(
                str(next(self._permits)), user, cost, now, category=None if category is None else category.name
            )
            for each, sends in scopes if take else ():
                sends.add(each, permit.id, now, now, cost=cost, longest_us=sends.longest_us(now))
        return permit
