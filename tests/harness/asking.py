"""Ask for permits by rules of the test's own, in Redis by the scripts of `Notifier.acquire`, and in memory."""

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import count

from redis import Redis

from notifier.limiter import Hold
from notifier.producer.permits import Asked, UserPermit, acquire, refund
from notifier.rules.category import DEFAULT_CATEGORY, Category
from notifier.rules.evaluator import Sends
from notifier.rules.policies import Rules
from notifier.rules.policy import Policy
from notifier.scripts.keys import user_key
from notifier.scripts.loader import run
from notifier.testing.memory import SendsOfUser, take


def rules_of(rules: Policy | Rules, cost: int = 1) -> Rules:
    """These rules, a Policy being the user's alone, for something of this cost."""
    if isinstance(rules, Policy):
        rules = Rules(rules, Category(DEFAULT_CATEGORY))
    return Rules(rules.user, replace(rules.category, cost=cost))


class InRedis:
    """Asks Redis. clock: µs since the epoch, '' for Redis's own."""

    def __init__(self, redis: Redis, clock: str = "") -> None:
        self.redis, self.clock = redis, clock

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """Take a permit."""
        return self._ask(user, rules, cost, take=True)

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """Answer as `acquire`, and take nothing."""
        return self._ask(user, rules, cost, take=False)

    def _ask(self, user: str, rules: Policy | Rules, cost: int, *, take: bool) -> UserPermit | Hold:
        clock = self.clock  # asked for once, as it may let keys expire
        return run(self.redis, acquire(Asked(user, rules_of(rules, cost), 0), clock, take=take))

    def refund(self, permit: UserPermit) -> bool:
        """Give a permit back."""
        return run(self.redis, refund(permit, self.clock))

    def known(self, user: str) -> int:
        """How many of a user's sends are known."""
        buckets = self.redis.zrange(user_key("counts", user), 0, -1, withscores=True)
        counted = buckets[-1][1] - buckets[0][1] if buckets else 0
        return self.redis.zcard(user_key("sent", user)) + int(counted)

    def give_all_back(self, user: str, category: str = DEFAULT_CATEGORY) -> int:
        """Give back all that a user was sent and that stands as itself; returns how many these were."""
        sent = [name.decode() for name in self.redis.zrange(user_key("sent", user), 0, -1)]
        return sum(self.refund(UserPermit(name, user, 1, 0, category=category)) for name in sent)


class InMemory:
    """Answers as FakeNotifier does. clock: µs since the epoch."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.sends: defaultdict[str, SendsOfUser] = defaultdict(lambda: defaultdict(Sends))
        self._ids = count(1)

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """Take a permit."""
        return take(self.sends[user], self._asked(user, rules, cost), str(next(self._ids)))

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> UserPermit | Hold:
        """Answer as `acquire`, and take nothing."""
        return take(deepcopy(self.sends[user]), self._asked(user, rules, cost), "")

    def refund(self, permit: UserPermit) -> bool:
        """Give a permit back."""
        return sum(self.sends[permit.user][name].remove(permit.id) for name in (None, permit.category)) > 0

    def known(self, user: str) -> int:
        """How many of a user's sends are known."""
        return len(self.sends[user][None])

    def _asked(self, user: str, rules: Policy | Rules, cost: int) -> Asked:
        return Asked(user, rules_of(rules, cost), self.clock())
