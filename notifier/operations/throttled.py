"""List who waits most: the users with the longest backlogs, and those of the first in the queues. Changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from notifier.dispatch.waits import describe_waits
from notifier.notification.job import fields_of
from notifier.rules.policy import DEFAULT_CATEGORY, LANES
from notifier.scripts.keys import job_key, redis_key, rq_key, user_key
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.together import ask_all

MAX_USERS: Final = 10
PAGE: Final = 100
PAGES: Final = 5  # of each lane
QUEUED: Final = 50  # of each queue, the first
IN_QUEUE: Final = "a worker: in the queue still"
UNTIL: Final = {IN_QUEUE: "when a worker takes it"}


@dataclass(frozen=True, slots=True)
class Throttled:
    """A user. waiting: how many wait in each category, the most first. whys: what each waits for.

    next_us: when the user is looked at again; None where somebody has to let the user go.
    """

    user: str
    waiting: dict[str, int]
    next_us: int | None
    whys: Mapping[str, str]

    @property
    def total(self) -> int:
        """How many wait in all."""
        return sum(self.waiting.values())

    def as_json(self) -> dict[str, Any]:
        """As plain data; next_at in seconds. until: what must happen first, where no time is known."""
        next_at = None if self.next_us is None else self.next_us / 1e6
        why = ", ".join(dict.fromkeys(self.whys[name] for name in self.waiting if self.whys.get(name)))
        route = why.removesuffix(" stopped")
        until = f"when {route} works again" if route != why else UNTIL.get(why, "when it is let go")
        if "pause of" in why:
            until = "when it is resumed"
        own = {"user": self.user, "waiting": self.total, "categories": self.waiting, "why": why, "next_at": next_at}
        return own | {"until": until}


def read_throttled(redis: Any) -> dict[str, Any]:
    """The users with the longest backlogs, as plain data. Raises RedisUnusableError where no partition answers.

    is_all: whether all users who wait were looked at; where there are many, some of them by chance are.
    """
    told = ask_all(Partitions.around(redis), _find)
    longest = sorted((each for found, _ in told.all for each in found), key=lambda each: (-each.total, each.user))
    is_all = not told.away and all(is_all for _, is_all in told.all)
    return {"users": [each.as_json() for each in longest[:MAX_USERS] if each.total], "is_all": is_all}


def _find() -> Exchange[tuple[list[Throttled], bool]]:
    users, is_all = yield from _waiting()
    found = yield from _backlogs(users)
    return _with_queued(found, (yield from _queued())), is_all


def _queued() -> Exchange[list[tuple[str, str]]]:
    """The user and the category of the first of each queue."""
    lanes = yield Commands(lambda pipe: [pipe.lrange(rq_key("queue", lane), 0, QUEUED - 1) for lane in LANES])
    metas = yield Commands(lambda pipe: [pipe.hget(job_key(job_id), "meta") for lane in lanes for job_id in lane])
    told = [fields_of(meta) for meta in metas]
    return [(str(each["user"]), str(each.get("category", DEFAULT_CATEGORY))) for each in told if "user" in each]


def _with_queued(found: list[Throttled], queued: Sequence[tuple[str, str]]) -> list[Throttled]:
    users = {each.user: each for each in found}
    for (user, category), n in Counter(queued).items():
        each = users.setdefault(user, Throttled(user, {}, None, {}))
        waiting = {**each.waiting, category: each.waiting.get(category, 0) + n}
        users[user] = replace(each, waiting=waiting, whys={category: IN_QUEUE, **each.whys})
    return list(users.values())


def _waiting() -> Exchange[tuple[dict[bytes, int | None], bool]]:
    """Users who wait, for a route or a time, each with its next µs; and whether these are all."""
    names, *numbers = yield Commands(
        lambda pipe: [pipe.smembers(redis_key("routes")), *(pipe.zcard(redis_key("gates", lane)) for lane in LANES)]
    )
    pages: list[tuple[str, int]] = []
    for lane, number in zip(LANES, numbers, strict=True):
        begins = range(0, number, PAGE)
        pages += [(lane, n) for n in (begins if number <= PAGE * PAGES else random.sample(begins, PAGES))]

    def ask(pipe: Any) -> None:
        for name in names:
            pipe.zrange(redis_key("waiting_for_route", "").encode() + name, 0, PAGE * PAGES)
        for lane, begin in pages:
            pipe.zrange(redis_key("gates", lane), begin, begin + PAGE - 1, withscores=True)

    found = yield Commands(ask)
    routed, due = found[: len(names)], found[len(names) :]
    users: dict[bytes, int | None] = {
        member.partition(b" ")[2]: None for each in routed for member in each if member[:1] == b"u"
    }
    for user, at in (each for page in due for each in page):
        users[user] = min(int(at), users.get(user) or int(at))
    return users, all(n <= PAGE * PAGES for n in (*numbers, *map(len, routed)))


def _backlogs(users: Mapping[bytes, int | None]) -> Exchange[list[Throttled]]:
    names = {user: user.decode(errors="replace") for user in users}
    lines = yield Commands(lambda pipe: [pipe.hgetall(user_key("lines", name)) for name in names.values()])
    backlogs = dict(zip(users, lines, strict=True))
    # Beside the categories stand what the scripts note of the user, under names that no category can have.
    asked = [(user, field.decode()) for user, found in backlogs.items() for field in found if field[:1] != b"#"]
    lengths = yield Commands(lambda pipe: [pipe.zcard(user_key("line", names[user], name)) for user, name in asked])
    waiting: dict[bytes, Counter[str]] = {user: Counter() for user in users}
    whys: dict[bytes, dict[str, str]] = {user: {} for user in users}
    for (user, category), length in zip(asked, lengths, strict=True):
        waiting[user][category] = length
        if why := backlogs[user].get(f"#w:{category}".encode()):
            whys[user][category] = describe_waits(why.decode(errors="replace"))[1]
    return [
        Throttled(names[user], {name: n for name, n in counts.most_common() if n}, users[user], whys[user])
        for user, counts in waiting.items()
    ]
