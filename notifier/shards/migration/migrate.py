"""Moves users from one shard to the others, one after the other, while everybody works.

A user is closed on the old shard: nothing is taken on there, nothing more is sent there. Once what was in flight has
been settled, what was sent is copied; then what waits follows, in order; then producers are sent on to the new shard.
Each step can be repeated: what was ended in the middle is gone on with by the next. See docs/decisions/0017-shards.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

from redis import Redis

from notifier.dispatch import calls
from notifier.errors import NotifierError
from notifier.rules.policy import LANES
from notifier.scripts.keys import is_key, job_key, redis_key, user_key
from notifier.scripts.loader import run
from notifier.scripts.ownership import HERE, ON_THE_WAY
from notifier.shards.migration import steps
from notifier.shards.migration.steps import Moving
from notifier.shards.migration.user_state import State, cut, scope_of
from notifier.shards.users import LOOK, user_of, users_in
from notifier.store.connection import redis_answers

LOCK_MS: Final = 15_000
BATCH: Final = 50  # users who are closed at once
JOBS_A_CALL: Final = 25
LOOK_EVERY_S: Final = 0.02
BELOW_S: Final = 4_000_000_000  # 2096: what is later waits for a route alone, see _routes.lua


class MoveError(NotifierError):
    """Users cannot be moved now; the text says why."""


@dataclass(slots=True)
class Progress:
    """How far it has come. waiting: users who are closed, and something of whose is in flight still, or queued."""

    users: int = 0
    jobs: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Mover:
    """Moves the users of one shard to where they belong. everybody: the shard is to be empty in the end.

    home: the shard a user is to live on. categories: all that may have rules. on_progress: told after each batch.
    """

    source: str
    clients: Mapping[str, Redis]
    home: Callable[[str], str]
    categories: Collection[str]
    everybody: bool
    keep_failed_us: int
    on_progress: Callable[[Progress], object] = lambda _: None
    progress: Progress = field(default_factory=Progress)
    _pending: dict[str, list[str]] = field(default_factory=dict)  # user -> the last jobs that were queued then
    _categories: dict[str, set[str]] = field(default_factory=dict)  # user -> those that no configuration names
    _token: str = field(default_factory=lambda: secrets.token_hex(8))

    def run(self) -> Progress:
        """Move all, and look again until nobody is left. Raises MoveError, and RedisUnusableError."""
        redis: Any = self.clients[self.source]
        with redis_answers(), self._alone():
            self._begin(redis)
            while self._moves_some(redis):
                pass
            for name, client in self.clients.items():
                if name != self.source:
                    client.unlink(redis_key("arrived", self.source))
        return self.progress

    @contextmanager
    def _alone(self) -> Iterator[None]:
        redis = self.clients[self.source]
        if not redis.set(redis_key("mover"), self._token, nx=True, px=LOCK_MS):
            raise MoveError(f"users of {self.source} are being moved already, or were {LOCK_MS // 1000} s ago")
        try:
            yield
        finally:
            self._hold()
            redis.delete(redis_key("mover"))

    def _hold(self) -> None:
        """Go on alone, or not at all."""
        redis = self.clients[self.source]
        if redis.get(redis_key("mover")) != self._token.encode():
            raise MoveError(f"another command has begun to move the users of {self.source}")
        redis.pexpire(redis_key("mover"), LOCK_MS)

    def _begin(self, redis: Any) -> None:
        """Note who lives here, so that nobody new is taken on: producers note those whom they bring meanwhile."""
        everybody = " all" if self.everybody else ""
        redis.hset(redis_key("moves"), "", f"listing{everybody}")
        for _, users in self._pages(redis):
            known = redis.hmget(redis_key("moves"), users) if users else []
            if new := [user for user, at in zip(users, known, strict=True) if not at]:
                redis.hset(redis_key("moves"), mapping=dict.fromkeys(new, HERE))
        redis.hset(redis_key("moves"), "", f"listed{everybody}")

    def _moves_some(self, redis: Any) -> bool:
        """Move everybody who is found; returns whether anything was moved."""
        later, before = self._later(redis), (self.progress.users, self.progress.jobs)
        for keys, users in self._pages(redis):
            self._copy_dedupe(redis, keys)
            self._move_users(redis, users, later)
        # Who was noted, and of whom nothing is left by now, would still be taken on here.
        noted = (
            name.decode()
            for name, at in redis.hscan_iter(redis_key("moves"), count=LOOK)
            if name and at == HERE.encode()
        )
        self._move_users(redis, (user for user in noted if self.home(user) != self.source), later)
        while self._pending:
            if not self._move_ready(redis, later):
                Event().wait(LOOK_EVERY_S)
        return before != (self.progress.users, self.progress.jobs)

    def _move_users(self, redis: Any, users: Iterable[str], later: Mapping[str, list[str]]) -> None:
        for batch in cut(users, BATCH):
            self._close(redis, batch)
            self._move_ready(redis, later)

    def _pages(self, redis: Any) -> Iterator[tuple[list[bytes], list[str]]]:
        cursor = -1
        while cursor:
            cursor, keys = redis.scan(max(cursor, 0), count=LOOK)
            self._hold()
            self._note_categories(keys)
            yield keys, [user for user in users_in(redis, keys) if self.home(user) != self.source]

    def _note_categories(self, keys: list[bytes]) -> None:
        """Note the categories of which something is kept, and that are not, or no longer, configured here."""
        for key in keys:
            if (scope := scope_of(key)) is not None and scope[1] not in self.categories:
                self._categories.setdefault(scope[0], set()).add(scope[1])

    def _later(self, redis: Any) -> dict[str, list[str]]:
        """The jobs that wait for a time of their own, by user."""
        found: dict[str, list[str]] = {}
        job_ids = [job_id for job_id, _ in redis.zscan_iter(redis_key("later"), count=LOOK)]
        for some in cut(job_ids, LOOK):
            with redis.pipeline(transaction=False) as pipe:
                for job_id in some:
                    pipe.hget(job_key(job_id), "meta")
                metas = pipe.execute()
            for job_id, meta in zip(some, metas, strict=True):
                if (user := user_of(meta)) and self.home(user) != self.source:
                    found.setdefault(user, []).append(job_id.decode())
        return found

    def _copy_dedupe(self, redis: Any, keys: list[bytes]) -> None:
        for key in keys:
            if not is_key(key, "dedupe"):
                continue
            length, _, rest = key.removeprefix(redis_key("dedupe", "").encode()).decode().partition(":{")
            if (to := self.home(rest[: int(length)])) != self.source:
                job_id, left_ms = redis.get(key), redis.pttl(key)
                if job_id is not None and left_ms > 0:
                    self.clients[to].set(key, job_id, nx=True, px=left_ms)

    def _close(self, redis: Any, users: Iterable[str]) -> None:
        tails = run(redis, steps.leave({user: self.home(user) for user in users}, LANES))
        self._pending |= dict.fromkeys(users, tails)

    def _move_ready(self, redis: Any, later: Mapping[str, list[str]]) -> int:
        """Move those who are closed and of whom nothing is in flight or queued; returns how many."""
        self._hold()
        busy, queued = self._in_flight(redis), self._queued(redis)
        ready = [user for user, tails in self._pending.items() if user not in busy and queued.isdisjoint(tails)]
        if "" in busy:  # a job that was deleted in flight: nobody knows whose it was, until its lease ends
            ready = []
        for user in ready:
            self._move(redis, user, later.get(user, []))
            del self._pending[user]
        self.progress.waiting = len(self._pending)
        self.on_progress(self.progress)
        return len(ready)

    def _in_flight(self, redis: Any) -> set[str]:
        """The users of whom a worker holds something; '' for jobs that are gone."""
        job_ids = redis.zrange(redis_key("leases"), 0, -1)
        with redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(job_key(job_id), "origin", "meta")
            found = pipe.execute()
        users = {user_of(meta) for origin, meta in found if origin}
        return {user for user in users if user} | ({""} if any(origin is None for origin, _ in found) else set())

    def _queued(self, redis: Any) -> set[str]:
        """Of the jobs that were the last in their queues, those that stand there still."""
        tails = sorted({tail for tails in self._pending.values() for tail in tails})
        with redis.pipeline(transaction=False) as pipe:
            for tail in tails:
                pipe.hmget(job_key(tail), "status", "push_order", "push_permit")
            found = pipe.execute()
        return {tail for tail, job in zip(tails, found, strict=True) if job == [b"queued", None, None]}

    def _move(self, redis: Any, user: str, later: list[str]) -> None:
        to = self.home(user)
        state = State(redis, self.clients[to], user)
        categories = {*self.categories, *self._categories.pop(user, ())}
        if (redis.hget(redis_key("moves"), user) or b"").startswith(ON_THE_WAY.encode()):
            state.copy(categories)
            self.clients[to].hdel(redis_key("moves"), user)  # who comes back is here again
            self.progress.users += 1
        else:  # gone before; something has turned up since
            state.add(categories)
        for category in redis.hkeys(user_key("away", user)):
            while jobs := run(redis, steps.depart(user, category.decode(), max_jobs=JOBS_A_CALL)):
                self._send_on(redis, to, user, [state.shifted(job) for job in jobs])
        for some in cut(later, JOBS_A_CALL):
            jobs = [state.shifted(job) for job in self._read_later(redis, some)]
            self._send_on(redis, to, user, jobs)
        redis.hset(redis_key("moves"), user, to)

    def _read_later(self, redis: Any, job_ids: list[str]) -> Iterator[Moving]:
        with redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(job_key(job_id))
                pipe.zscore(redis_key("later"), job_id)
            found = pipe.execute()
        for n, job_id in enumerate(job_ids):
            fields, at = found[2 * n : 2 * n + 2]
            if fields and at is not None and fields.get(b"status") != b"canceled":
                yield Moving(job_id, fields, None if at > BELOW_S * 1_000_000 else int(at))

    def _send_on(self, redis: Any, to: str, user: str, jobs: list[Moving]) -> None:
        self._hold()
        if not jobs:
            return
        self.progress.jobs += run(self.clients[to], steps.arrive(self.source, jobs))
        for job_id in run(redis, steps.departed(user, [job.id for job in jobs])):
            run(self.clients[to], calls.cancel([job_id], keep_failed_us=self.keep_failed_us))
