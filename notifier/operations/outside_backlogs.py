"""Finds what is accepted for a user and is in no backlog: queued, being sent, or waiting for its own time.

No structure holds these by user, so the first of each are read, and the answer says whether that were all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from notifier.forecast.expected import Expected, expect_later
from notifier.notification.json_values import fields_of
from notifier.queue.backlogs import queue_keys
from notifier.queue.circuits import find_routes
from notifier.queue.waits import OF_LATER
from notifier.scripts.keys import job_key, redis_key
from notifier.store.connection import ask_each, redis_answers
from notifier.store.exchange import exchange

MAX_READ: Final = 500  # of each structure
FIELDS: Final = ("push_outcome", *OF_LATER)
Where = Literal["queued", "sending", "later"]
WHERE: Final = {"queued": "no worker has looked at it yet", "sending": "a worker is sending it"}


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A notification in no backlog. at: of one that waits for a time, until when. held_by: why it waits."""

    job_id: str
    category: str
    state: Where
    held_by: str
    at: datetime | None = None


def find_elsewhere(redis: Any, user: str) -> tuple[list[Elsewhere], bool]:
    """Return what was found, and whether everything was read. Raises RedisUnusableError."""
    with redis_answers():
        found, is_all = _ids(redis)
        jobs = ask_each(redis, found, lambda pipe, each: pipe.hmget(job_key(each[0]), FIELDS))
        routes = exchange(redis, find_routes())
    mine = []
    for (job_id, state, at), (ended, *noted) in zip(found, jobs, strict=True):
        category = _category(noted[0], user)
        if category is not None and ended is None:  # a cancelled one stays in its queue for a while
            told = Expected(None, WHERE[state]) if at is None else expect_later(at, noted, routes)
            mine.append(Elsewhere(job_id.decode(errors="replace"), category, state, told.not_before, told.at))
    return mine, is_all


def _ids(redis: Any) -> tuple[list[tuple[bytes, Where, float | None]], bool]:
    queued = queue_keys()
    with redis.pipeline(transaction=False) as pipe:
        pipe.zrange(redis_key("later"), 0, MAX_READ, withscores=True)
        pipe.zrange(redis_key("leases"), 0, MAX_READ)
        for queue in queued:
            pipe.lrange(queue, 0, MAX_READ)
        later, leases, *queues = pipe.execute()
    found: list[tuple[bytes, Where, float | None]] = [(job_id, "later", at) for job_id, at in later[:MAX_READ]]
    found += [(job_id, "sending", None) for job_id in leases[:MAX_READ]]
    found += [(job_id, "queued", None) for queue in queues for job_id in queue[:MAX_READ]]
    return found, all(len(each) <= MAX_READ for each in (later, leases, *queues))


def _category(meta: bytes | None, user: str) -> str | None:
    fields = fields_of(meta)  # of a plain producer only its data tell
    return str(fields.get("category", "default")) if fields.get("user") == user else None
