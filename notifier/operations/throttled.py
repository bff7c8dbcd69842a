"""List the users with the longest backlogs. Changes nothing."""

from __future__ import annotations

import random
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
UNTIMED: Final = {"paused", "muted", "route", "sending"}  # these waits do not end at the wake-up of their lane
UNTIL: Final = {
    "retry": "when it is tried again",
    "paused": "when the pause ends",
    "muted": "when the mute ends",
    "sending": "when that one has ended",
}


@dataclass(slots=True)
class Throttled:
    """A user. waiting: notifications by category, the most first. whys: why each category waits: kind, words.

    next_us: the first wake-up at which something may go; None if there is none.
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
        whys = [self.whys[name] for name in self.waiting]
        next_at = None if self.next_us is None else self.next_us / 1e6
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


def _waiting() -> Exchange[tuple[dict[bytes, dict[str, int]], bool]]:
    """Return users who wait, for a route or a time, each with the wake-up in each lane; and whether these are all."""
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
    users: dict[bytes, dict[str, int]] = {
        member.partition(b" ")[2]: {} for each in routed for member in each if member[:1] == b"u"
    }
    for (name, _), page in zip(pages, due, strict=True):
        for user, at in page:
            users.setdefault(user, {})[name] = int(at)
    return users, all(n <= PAGE * PAGES for n in (*numbers, *map(len, routed)))


def _backlogs(users: Mapping[bytes, Mapping[str, int]]) -> Exchange[list[Throttled]]:
    found = {user: Throttled(user.decode(errors="replace")) for user in users}
    answers = yield Commands(lambda pipe: [pipe.hgetall(user_key("backlogs", each.user)) for each in found.values()])
    backlogs = dict(zip(users, answers, strict=True))
    # The scripts keep notes in the same hash, under names that no category can have.
    asked = [(user, field.decode()) for user, of in backlogs.items() for field in of if field[:1] != b"#"]
    lengths = yield Commands(
        lambda pipe: [pipe.zcard(user_key("backlog", found[user].user, name)) for user, name in asked]
    )
    waiting = [(n, *of) for n, of in zip(lengths, asked, strict=True) if n]
    for length, user, category in sorted(waiting, reverse=True):
        each, notes = found[user], backlogs[user]
        why = describe_waits(notes.get(f"#w:{category}".encode(), b"").decode(errors="replace"))
        each.waiting[category], each.whys[category] = length, why
        at = users[user].get(notes[category.encode()].decode())
        if at and why[0] not in UNTIMED:
            each.next_us = min(at, each.next_us or at)
    return [*found.values()]
