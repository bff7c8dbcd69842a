"""Who lives on a Redis: the users of whom it keeps something. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from redis import Redis

from notifier.scripts.keys import job_key, redis_key
from notifier.store.connection import redis_answers

LOOK: Final = 500  # keys in one step
OF_A_USER: Final = ("lines", "line", "sent", "counts", "burst", "usage", "away", "tagged")
LIVE: Final = frozenset({b"queued", b"scheduled", b"started"})


def list_users(redis: Redis) -> Iterator[set[str]]:
    """The users, by some hundred keys at a step; some more than once.

    Raises RedisUnusableError if Redis does not answer.
    """
    client: Any = redis
    cursor = -1
    with redis_answers():
        while cursor:
            cursor, keys = client.scan(max(cursor, 0), count=LOOK)
            yield users_in(client, keys)


def users_in(redis: Any, keys: list[bytes]) -> set[str]:
    """The users of whom one of these keys tells something that has not ended."""
    named = {user for key in keys if (user := _user_in(key))} | _of_jobs(redis, keys)
    preferences = redis_key("preferences")
    if preferences.encode() in keys:
        named |= {user.decode() for user, _ in redis.hscan_iter(preferences, count=LOOK)}
    return named


def user_of(meta: bytes | None) -> str | None:
    """Whom a job is for, by its meta; None where it is no notification."""
    try:
        user = json.loads(meta or b"{}").get("user")
    except (ValueError, AttributeError):
        return None
    return user if isinstance(user, str) and user else None


def _user_in(key: bytes) -> str | None:
    for name in OF_A_USER:
        if key.startswith(prefix := redis_key(name, "{").encode()):
            # A category has no brace, so the last one ends the user.
            return key.removeprefix(prefix).rpartition(b"}")[0].decode()
    return None


def _of_jobs(client: Any, keys: list[bytes]) -> set[str]:
    """Of those jobs that wait or are being sent: the others are a record, and are looked up where they are."""
    jobs = job_key("")
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            if key.startswith(jobs):
                pipe.hmget(key, "meta", "status")
        found = pipe.execute()
    return {user for meta, status in found if status in LIVE and (user := user_of(meta))}
