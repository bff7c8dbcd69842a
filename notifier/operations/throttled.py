"""Who is throttled most: the users with the longest backlogs. Changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from notifier.rules.policy import LANES
from notifier.scripts.keys import redis_key, user_key
from notifier.store.connection import redis_answers

MAX_USERS: Final = 10
PAGE: Final = 100
PAGES: Final = 5  # of each lane


@dataclass(frozen=True, slots=True)
class Throttled:
    """A user. waiting: how many wait in each category, the most first. next_us: when the user is looked at again."""

    user: str
    waiting: dict[str, int]
    next_us: int

    @property
    def total(self) -> int:
        """How many wait in all."""
        return sum(self.waiting.values())

    def as_json(self) -> dict[str, Any]:
        """As plain data; next_at in seconds."""
        return {"user": self.user, "waiting": self.total, "categories": self.waiting, "next_at": self.next_us / 1e6}


def read_throttled(clients: Mapping[str, Any]) -> dict[str, Any]:
    """The users with the longest backlogs, as plain data. Raises RedisUnusableError.

    is_all: whether all users who wait were looked at; where there are many, some of them by chance are.
    """
    found, is_all = list[Throttled](), True
    for redis in clients.values():
        with redis_answers():
            users, is_whole = _waiting(redis)
            found += _backlogs(redis, users)
        is_all &= is_whole
    longest = sorted(found, key=lambda each: (-each.total, each.user))[:MAX_USERS]
    return {"users": [each.as_json() for each in longest if each.total], "is_all": is_all}


def _waiting(redis: Any) -> tuple[dict[bytes, int], bool]:
    """Users who wait, each with its next µs, and whether these are all."""
    users, is_all = dict[bytes, int](), True
    for lane in LANES:
        key = redis_key("gates", lane)
        number = redis.zcard(key)
        is_whole = number <= PAGE * PAGES
        begins = range(0, number, PAGE) if is_whole else random.sample(range(0, number, PAGE), PAGES)
        for begin in begins:
            for user, at in redis.zrange(key, begin, begin + PAGE - 1, withscores=True):
                users[user] = min(int(at), users.get(user, int(at)))
        is_all &= is_whole
    return users, is_all


def _backlogs(redis: Any, users: Mapping[bytes, int]) -> list[Throttled]:
    names = {user: user.decode(errors="replace") for user in users}
    with redis.pipeline(transaction=False) as pipe:
        for name in names.values():
            pipe.hkeys(user_key("lines", name))
        backlogs = zip(users, pipe.execute(), strict=True)
    # Beside the categories stand what the scripts note of the user, under names that no category can have.
    asked = [(user, category.decode()) for user, found in backlogs for category in found if category[:1] != b"#"]
    with redis.pipeline(transaction=False) as pipe:
        for user, category in asked:
            pipe.zcard(user_key("line", names[user], category))
        lengths = pipe.execute()
    waiting: dict[bytes, Counter[str]] = {user: Counter() for user in users}
    for (user, category), length in zip(asked, lengths, strict=True):
        waiting[user][category] = length
    return [
        Throttled(names[user], {name: n for name, n in counts.most_common() if n}, users[user])
        for user, counts in waiting.items()
    ]
