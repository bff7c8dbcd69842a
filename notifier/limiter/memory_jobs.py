"""A job of `MemoryLines`, and how its meta is read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from notifier.limiter.lines import Job, Leased
from notifier.limiter.memory_ranked import Ranked

CATEGORY: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(slots=True)
class Entry:
    """A job that has not ended, and what the scripts keep in its hash.

    deadline_us: when it expires. zone: if it names one. since_us: when it entered its line first.
    counted: whether its devices count the permit that it has.
    collapse_id: of a newcomer to its line whose place a newer one may take. count: how many it stands for.
    arriving: whose `max_waiting` it is under, until it comes to its line. gather_us: until when a digest gathers;
    0 where there are enough. unlike: it may stand before a head that waits for what it need not: a digest, a device.
    """

    job: Job
    state: str = "queue"
    user: str = ""
    category: str = ""
    order: int | None = None
    deadline_us: int | None = None
    permit: str = ""
    attempts: int = 0
    crashes: int = 0
    answered: bytes | None = None
    targets: str = ""
    counted: bool = False
    collapse_id: str | None = None
    count: int = 1
    zone: str | None = None
    since_us: int = 0
    arriving: str = ""
    gather_us: int | None = None
    unlike: bool = False

    @property
    def untried(self) -> bool:
        """Whether no worker has tried it, so that it may be dropped."""
        return not (self.attempts or self.crashes or self.answered)

    def leased(self, left_us: int | None, shut: frozenset[str], *, dropped: bool) -> Leased:
        """What the worker that holds the lease is told."""
        return Leased(
            self.job.id,
            self.permit,
            self.user,
            self.category,
            self.job.data,
            left_us,
            self.attempts,
            self.crashes,
            self.answered,
            shut,
            self.count,
            dropped,
        )


def steering(meta: bytes) -> dict[str, Any] | None:
    """The meta of a notification of ours, or None where it names no user and category."""
    try:
        fields = json.loads(meta.decode())  # as strictly as the scripts
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    user, category = fields.get("user"), fields.get("category", "default")
    if not isinstance(user, str) or not user or not isinstance(category, str) or not CATEGORY.fullmatch(category):
        return None
    return fields


class Kept:
    """Words by key, each until a time."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._until = Ranked()

    def get(self, key: str) -> str | None:
        """The word; None where there is none, or none any more."""
        return self._words.get(key)

    def put(self, key: str, word: str, until_us: int) -> None:
        """Keep a word until then."""
        self._words[key] = word
        self._until.put(key, until_us)

    def forget(self, now: int) -> None:
        """Drop what was kept long enough."""
        while (first := self._until.first()) is not None and first[0] <= now:
            del self._words[self._until.pop()[1]]
