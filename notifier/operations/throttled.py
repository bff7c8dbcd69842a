"""List the users with the longest backlogs. Changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from notifier.queue.waits import describe_waits
from notifier.rules.category import LANES
from notifier.scripts.keys import redis_key, user_key
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.pipelining import ask_all

MAX_USERS: Final = 10
PAGE: Final = 100
PAGES: Final = 5  # of each lane
UNTIMED: Final = {"paused", "muted", "route", "sending"}  # these waits do not end at the wake-up
UNTIL: Final = {
    "retry": "when it is tried again",
    "paused": "when the pause ends",
    "muted": "when the mute ends",
    "sending": "when that one has ended",
}


@dataclass(slots=True)
class Throttled:
    """A user. waiting: notifications by category, the most first. whys: why each category waits: kind, words.

    next_us: the wake-up; None if the user has none, and waits for a route.
    """

    user: str
    waiting: dict[str, int] = field(default_factory=dict)
    next_us: int | None = None
    whys: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.waiting.values())

    def as_json(self) -> dict[str, Any]:
        """Return plain data; next_at in seconds. until: the event that ends the wait, if no time is known."""
        whys = [self.whys.get(name, ("", "")) for name in self.waiting]
        is_timed = any(kind not in UNTIMED for kind, _ in whys)
        next_at = None if self.next_us is None or not is_timed else self.next_us / 1e6
        why = ", ".join(dict.fromkeys(what for _, what in whys if what))
        until = next(filter(None, map(_until, whys)), "when it is let go")
        own = {"user": self.user, "waiting": self.total, "categories": self.waiting}
        return own | {"why": why, "next_at": next_at, "until": until}


def _until(why: tuple[str, str]) -> str:
    kind, what = why
    route = what.removesuffix(" stopped")
    return UNTIL.get(kind, "") if route == what else f"when {route} works again"


def read_throttled(redis: Any) -> dict[str, Any]:
    """Return the users with the longest backlogs, as plain data. Raises RedisUnusableError if no partition answers.

    is_all: whether all users who wait were read; if there are many, a random sample is. says: how many users were
    found, and the length of their backlogs if it is the same for all.
    """
    answers = ask_all(Partitions.around(redis), _find)
    longest = _longest(each for found, *_ in answers.all for each in found)
    is_all = not answers.away and all(is_all for *_, is_all in answers.all)
    totals = [total for _, totals, _ in answers.all for total in totals]
    users = "user waits" if len(totals) == 1 else "users wait"
    says = f"{len(totals):,} {users if is_all else 'of the users who wait were looked at'}"
    says += f", each with {totals[0]:,}" if len(totals) > 1 == len({*totals}) else ""
    says += f"; here are {len(longest)}." if len(longest) < len(totals) else "."
    return {"users": [each.as_json() for each in longest], "is_all": is_all, "says": says if totals else ""}


def _find() -> Exchange[tuple[list[Throttled], list[int], bool]]:
    """Return the users with the longest backlogs, the totals of all users read, and whether all were read."""
    users, is_all = yield from _waiting()
    found = yield from _backlogs(users)
    waiting = [each for each in found if each.total]
    return _longest(waiting), [each.total for each in waiting], is_all


def _longest(found: Iterable[Throttled]) -> list[Throttled]:
    return sorted(found, key=lambda each: -each.total)[:MAX_USERS]


def _waiting() -> Exchange[tuple[dict[bytes, int | None], bool]]:
    """Return users who wait, for a route or a time, each with the wake-up; and whether these are all."""
    names, *numbers = yield Commands(
        lambda pipe: [pipe.smembers(redis_key("routes")), *(pipe.zcard(redis_key("wakeups", lane)) for lane in LANES)]
    )
    pages: list[tuple[str, int]] = []
    for lane, number in zip(LANES, numbers, strict=True):
        begins = range(0, number, PAGE)
        pages += [(lane, n) for n in (begins if number <= PAGE * PAGES else random.sample(begins, PAGES))]

    def ask(pipe: Any) -> None:
        for name in names:
            pipe.zrange(redis_key("waiting_for_route", "").encode() + name, 0, PAGE * PAGES)
        for lane, begin in pages:
            pipe.zrange(redis_key("wakeups", lane), begin, begin + PAGE - 1, withscores=True)

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
    lines = yield Commands(lambda pipe: [pipe.hgetall(user_key("backlogs", name)) for name in names.values()])
    backlogs = dict(zip(users, lines, strict=True))
    # The scripts keep notes in the same hash, under names that no category can have.
    asked = [(user, field.decode()) for user, found in backlogs.items() for field in found if field[:1] != b"#"]
    lengths = yield Commands(lambda pipe: [pipe.zcard(user_key("backlog", names[user], name)) for user, name in asked])
    waiting: dict[bytes, Counter[str]] = {user: Counter() for user in users}
    whys: dict[bytes, dict[str, tuple[str, str]]] = {user: {} for user in users}
    for (user, category), length in zip(asked, lengths, strict=True):
        waiting[user][category] = length
        if why := backlogs[user].get(f"#w:{category}".encode()):
            whys[user][category] = describe_waits(why.decode(errors="replace"))
    return [
        Throttled(names[user], {name: n for name, n in counts.most_common() if n}, users[user], whys[user])
        for user, counts in waiting.items()
    ]
