"""Overload: how many notifications may wait, and what is said of those that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from notifier.errors import OverloadedError

Limit = Literal["user", "all", "memory"]


@dataclass(frozen=True, slots=True)
class MostWaiting:
    """`max_waiting` in all, of everyone, and of the users who have another; None is any number."""

    in_all: int | None = None
    everyone: int | None = None
    users: Mapping[str, int] = field(default_factory=dict)

    def of(self, user: str) -> int | None:
        """How many of one user's may wait."""
        return self.users.get(user, self.everyone)


@dataclass(frozen=True, slots=True)
class Refused:
    """One notification that was not accepted. place: in what `send_many` was given, from 0.

    limit: 'user', the user's own `max_waiting`, or 'all'; or 'memory', `redis.max_memory`. waiting: how many waited,
    or the bytes in use. most: how many may.
    """

    user: str
    limit: Limit
    waiting: int
    most: int
    place: int = 0

    def __str__(self) -> str:
        if self.limit == "memory":
            return f"Redis uses {self.waiting:,} bytes, and redis.max_memory is {self.most:,}"
        who = f"of user {self.user!r}" if self.limit == "user" else "in all"
        return f"{self.waiting} wait {who}, and max_waiting is {self.most}"


def accepted(answers: Sequence[str | Refused]) -> list[str]:
    """The job ids of those that were accepted."""
    return [answer for answer in answers if isinstance(answer, str)]


def all_accepted(answers: list[str | Refused]) -> list[str]:
    """The job ids; raise OverloadedError where some were refused."""
    over = [replace(answer, place=n) for n, answer in enumerate(answers) if isinstance(answer, Refused)]
    if over:
        raise OverloadedError(over, len(answers))
    return accepted(answers)
