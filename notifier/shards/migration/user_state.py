"""What a shard knows of a user beside the jobs, copied to another whose clock tells another time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Literal, TypeVar

from notifier.dispatch.history import history_keys
from notifier.scripts.keys import is_key, redis_key
from notifier.shards.migration.steps import Moving
from notifier.store.connection import time_us
from notifier.units import to_bytes

T = TypeVar("T")
WRITTEN_AT_ONCE: Final = 500
MARGIN_MS: Final = 1_000
# What comes along stands before all that the new shard gives out, in its own order: below by more than any counts.
BEFORE: Final = 1_000_000_000_000
# Fields of a job that are of the old shard: a permit is a number of its own counter.
LEFT_BEHIND: Final = {b"push_permit", b"push_counted", b"worker_name"}

# By the names of their keys: where in them µs stand.
Times = Literal["scores", "members"] | frozenset[bytes]
OF_USER: Final[Mapping[str, Times]] = {
    "usage": frozenset({b"first", b"last"}),
    "arriving": "scores",
    "tagged": "scores",
}
OF_SCOPE: Final[Mapping[str, Times]] = {
    "sent": "scores",
    "counts": "members",
    "burst": frozenset({b"full", b"at"}),
    "collapse": frozenset(),
}


SCOPE: Final = re.compile(rb".*?\{(.*)\}:([^}]+)", re.DOTALL)


class State:
    """One user's on the shard that is left, `old`, where nothing changes any more, and on the `new` one.

    ahead_us: by how much the new one's clock is ahead, at the most: it is asked after the other. So whatever was sent
    is taken to be as late as it was, or later by a round trip.
    """

    def __init__(self, old: Any, new: Any, user: str) -> None:
        self._old = old
        self._new = new
        self._name = user
        self._user = f"{{{user}}}"
        before_us, now_us = time_us(old), time_us(new)
        self.ahead_us = now_us - before_us

    def copy(self, categories: Iterable[str]) -> None:
        """Take what was sent, counted and noted to the new shard, and then away from the old one; can be repeated."""
        scopes = [self._user, *(f"{self._user}:{category}" for category in categories)]
        keys: list[tuple[str, Times]] = [
            *((redis_key(kind, scope), times) for scope in scopes for kind, times in OF_SCOPE.items()),
            *((redis_key(kind, self._user), times) for kind, times in OF_USER.items()),
        ]
        with self._old.pipeline(transaction=False) as pipe:
            for key, times in keys:
                pipe.hgetall(key) if isinstance(times, frozenset) else pipe.zrange(key, 0, -1, withscores=True)
                pipe.pttl(key)
            found = pipe.execute()
        with self._new.pipeline(transaction=False) as pipe:
            for (key, times), content, left_ms in zip(keys, found[::2], found[1::2], strict=True):
                if content:
                    self._write(pipe, key, times, content)
                    if left_ms > 0:
                        lasts_ms = left_ms + max(0, self.ahead_us // 1000) + MARGIN_MS
                        pipe.pexpire(key, lasts_ms)
                        if times == "members":
                            pipe.set(redis_key("counting"), "1", px=2 * lasts_ms)
            self._copy_history(pipe)
            pipe.execute()
        preferences, user = redis_key("preferences"), to_bytes(self._name)
        if (text := self._old.hget(preferences, user)) is not None:
            self._new.hset(preferences, user, text)
            self._old.hdel(preferences, user)
        claims = (redis_key("claim", scope) for scope in scopes)  # of workers that died: nothing flies any more
        self._old.delete(*(key for key, _ in keys), *claims, *history_keys(self._name))

    def _copy_history(self, pipe: Any) -> None:
        """The records of what ended, with the times by the clock of the shard where it did, before those of here."""
        for key in history_keys(self._name):
            left_ms = self._old.pttl(key) - self.ahead_us // 1000
            for record in reversed(self._old.lrange(key, 0, -1)):
                pipe.lrem(key, 0, record)
                pipe.lpush(key, record)
            if left_ms > 0:
                pipe.pexpire(key, left_ms)

    def _write(self, pipe: Any, key: str, times: Times, content: Any) -> None:
        if times == "scores":
            for some in cut(content, WRITTEN_AT_ONCE):
                # GT: what stands there later stays.
                pipe.zadd(key, {permit: int(at) + self.ahead_us for permit, at in some}, gt=True)
        elif times == "members":
            pipe.delete(key)
            for some in cut(content, WRITTEN_AT_ONCE):
                pipe.zadd(key, {self._later(at): count for at, count in some})
        else:
            mapping = {name: self._later(value) if name in times else value for name, value in content.items()}
            pipe.hset(key, mapping=mapping)

    def add(self, categories: Iterable[str] = ()) -> None:
        """Add what turned up here after `copy`: a late cancellation, sends of a category that nobody knew of."""
        key = redis_key("usage", self._user)
        for name, value in self._old.hgetall(key).items():
            if name not in {b"first", b"last"}:
                self._new.hincrby(key, name, int(value))
        self._old.delete(key)
        self.copy(categories)

    def shifted(self, job: Moving) -> Moving:
        """A job as it is to stand on the new shard: its times by that one's clock, its order before that one's own."""
        fields = {name: value for name, value in job.fields.items() if name not in LEFT_BEHIND}
        fields[b"status"] = b"queued" if job.at_us is None else b"scheduled"
        for name in {b"push_deadline", b"push_since", b"push_accepted"} & fields.keys():
            fields[name] = self._later(fields[name])
        if b"push_order" in fields:
            fields[b"push_order"] = b"%d" % (int(float(fields[b"push_order"])) - BEFORE)
        return replace(job, fields=fields, at_us=None if job.at_us is None else job.at_us + self.ahead_us)

    def _later(self, us: bytes) -> bytes:
        return b"%d" % (int(float(us)) + self.ahead_us)


def scope_of(key: bytes) -> tuple[str, str] | None:
    """The user and the category whose sends, counts or newcomers a key holds."""
    found = SCOPE.fullmatch(key) if any(is_key(key, name) for name in OF_SCOPE) else None
    return (found[1].decode(), found[2].decode()) if found else None


def cut(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Parts of so many at the most."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
