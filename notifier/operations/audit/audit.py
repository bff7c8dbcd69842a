"""Check, while workers run, that each job is in exactly one place, and that no entry is without a job.

The audit reads Redis by cursors, in small pieces, and keeps few names in memory. A script judges in one step. Where one
step is too short, the audit looks before and after it gathers the proof. So a job that moves meanwhile is no finding.
A repair is part of the step that judges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, TypeVar

from redis import Redis
from redis.exceptions import ResponseError

from notifier.errors import NotifierError
from notifier.operations.audit.calls import Finding, audit_entries, audit_jobs, audit_keys, audit_types
from notifier.operations.audit.permits import Entry, Permits
from notifier.operations.audit.queues import Queues
from notifier.queue.preferences import prefer
from notifier.rules.category import LANES
from notifier.rules.preferences import Preferences
from notifier.scripts.key_types import is_key, types_of
from notifier.scripts.keys import job_key, redis_key, rq_key
from notifier.scripts.loader import Call, run
from notifier.store.connection import ask_each, pieces, redis_answers
from notifier.texts import readable
from notifier.units import from_bytes

T = TypeVar("T")

KEYS_A_LOOK: Final = 200
MEMBERS_A_LOOK: Final = 100
JOBS_A_CALL: Final = 25
ENTRIES_A_CALL: Final = 50
SETS_A_LOOK: Final = 50

WRONG_TYPE: Final = "WRONGTYPE"
REGISTRIES: Final = ("scheduled", "wip", "failed", "canceled")  # RQ's, of each lane
JUDGED: Final = ("backlog", "backlogs", "claim", "route", "waiting_for_route")  # by *audit_key*


class Audit:
    """One audit of one Redis. jobs, users: how many notifications and users with backlogs it has met so far.

    on_progress: gets how many keys were read, of about how many.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        lease_us: int,
        repair: bool = False,
        on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._redis: Any = redis
        self._lease_us = lease_us
        self._repair = repair
        self._on_progress = on_progress
        self._permits = Permits(redis)
        self._wrong: set[bytes] = set()  # keys of a wrong type that were not removed
        self._queues = Queues(redis, repair=repair, lease_us=lease_us)
        self.jobs = 0
        self.users = 0

    def findings(self) -> Iterator[Finding]:
        """Yield each inconsistency; with `repair`, also what was done about it. Raises RedisUnusableError.

        If a key of a wrong type is not removed, the entries that need this key are skipped.
        """
        with redis_answers():
            for keys in self._pages():
                yield from self._judge_types(keys)
            for judged in self._stages():
                yield from _readable(judged)

    def _stages(self) -> Iterator[Iterator[Finding]]:
        jobs = job_key("")
        for page in self._pages():
            keys = [key for key in page if key not in self._wrong]
            self.users += sum(is_key(key, "backlogs") for key in keys)
            yield self._judge_jobs([key.removeprefix(jobs) for key in keys if key.startswith(jobs)])
            yield self._judge(audit_entries, self._members([key for key in keys if is_key(key, "backlog")]))
            yield self._judge(audit_keys, [(key, b"") for key in keys if any(is_key(key, name) for name in JUDGED)])
            yield self._judge(audit_keys, self._members([key for key in keys if is_key(key, "waiting_for_route")]))
            yield self._judge(audit_keys, self._permits.look_at(keys))
        names = [redis_key("later"), redis_key("leases")]
        for name in names + [rq_key(kind, lane) for kind in REGISTRIES for lane in LANES]:
            yield self._judge(audit_entries, self._members([name.encode()]))
        for lane in LANES:
            yield self._judge(audit_keys, self._members([redis_key("wakeups", lane).encode()]))
        yield self._queues.findings()
        yield self._judge(audit_keys, self._permits.suspects())
        yield self._judge_preferences()

    def _pages(self) -> Iterator[list[bytes]]:
        seen, keys = 0, self._redis.dbsize()
        for page in pieces(self._redis.scan_iter(count=KEYS_A_LOOK), KEYS_A_LOOK):
            yield page
            seen += len(page)
            self._on_progress(min(seen, keys), keys)

    def _judge_types(self, keys: list[bytes]) -> Iterator[Finding]:
        right = {key: " or ".join(sorted(types)).encode() for key in keys if (types := types_of(key))}
        names = {f"key {key.decode(errors='replace')}": key for key in right}
        for found in self._judge(audit_types, right.items()):
            self._wrong |= {names[found.what]} if found.left else set()
            yield found

    def _judge_jobs(self, job_ids: list[bytes]) -> Iterator[Finding]:
        for judged in self._each(audit_jobs, job_ids, JOBS_A_CALL):
            self.jobs += judged.notifications
            yield from judged.findings
            yield from self._queues.expect(judged.queued)

    def _judge(self, audit: Callable[..., Call[list[Finding]]], entries: Iterable[Entry]) -> Iterator[Finding]:
        for found in self._each(audit, entries, ENTRIES_A_CALL):
            yield from found

    def _judge_preferences(self) -> Iterator[Finding]:
        """Judge preferences that cannot be read. Workers treat their user as one who has none."""
        for user, text in self._redis.hscan_iter(redis_key("preferences"), count=MEMBERS_A_LOOK):
            try:
                Preferences.decode(text)
            except (ValueError, TypeError):
                name, stands = from_bytes(user), from_bytes(text)
                gone = self._repair and run(self._redis, prefer(name, stands, "", who="notifier audit")) is None
                saw, right = "has preferences that cannot be read", "what notifier.users writes, or none"
                yield Finding(f"user {readable(name)}", saw, right, "forgotten" if gone else "")

    def _members(self, keys: list[bytes]) -> Iterator[Entry]:
        """Yield the members of sorted sets. Most sets are short, so one round trip reads several."""
        for some in pieces(keys, SETS_A_LOOK):
            first = ask_each(self._redis, some, lambda pipe, key: pipe.zscan(key, 0, count=MEMBERS_A_LOOK))
            for key, (more, page) in zip(some, first, strict=True):
                yield from ((key, member) for member, _ in page)
                cursor = more
                while cursor:
                    cursor, rest = self._redis.zscan(key, cursor, count=MEMBERS_A_LOOK)
                    yield from ((key, member) for member, _ in rest)

    def _each(self, audit: Callable[..., Call[T]], items: Iterable[Any], size: int) -> Iterator[T]:
        """Judge `size` items a call. If a key of a wrong type breaks a call, judge its items one by one."""
        for some in pieces(items, size):
            try:
                yield run(self._redis, audit(some, repair=self._repair, lease_us=self._lease_us))
            except ResponseError as error:
                if WRONG_TYPE not in str(error):
                    raise
                if size > 1:
                    yield from self._each(audit, some, 1)


def repair_beside(redis: Any, lease_us: int) -> threading.Thread:
    """Start an audit that repairs, and return its thread. lease_us: how long a worker's lease lasts."""

    def repair() -> None:
        with suppress(NotifierError), redis_answers():  # Redis is away: the next worker that starts repairs
            marks = set()  # of scripts that failed before this audit
            with suppress(ResponseError):
                marks = redis.smembers(redis_key("halfway"))
            for _ in Audit(redis, lease_us=lease_us, repair=True).findings():
                pass
            if marks:
                redis.srem(redis_key("halfway"), *marks)

    thread = threading.Thread(target=copy_context().run, args=(repair,), daemon=True)
    thread.start()
    return thread


def _readable(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings up to a key of a wrong type, which has a finding of its own."""
    try:
        yield from findings
    except ResponseError as error:
        if WRONG_TYPE not in str(error):
            raise
