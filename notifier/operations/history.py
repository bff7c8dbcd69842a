"""Records of the history as plain data, and a search for a record by job id: no key leads from a job to its user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from notifier.queue.history import Record, decode_records
from notifier.scripts.keys import redis_key
from notifier.store.connection import ask_each, redis_answers, time_us
from notifier.units import moment

A_LOOK: Final = 500  # keys of one SCAN


def record_json(record: Record) -> dict[str, Any]:
    """Return a record as plain data. held: for how many seconds each reason held it; says: the record in one line."""
    answered = [str(reply) for reply in record.replies]
    return asdict(record) | {
        "held_s": round(record.held_s, 6),
        "held": record.totals(),
        "answered": answered,
        "says": str(record),
    }


def search_user(redis: Any, job_id: str, keep_us: int, on_progress: Callable[[int, int], None]) -> str | None:
    """Search the histories of all users for the user of a job. Raises RedisUnusableError.

    keep_us: a record that ended longer ago does not count. on_progress: gets how many keys were searched, of about how
    many.
    """
    wanted = b"\n" + job_id.encode()
    with redis_answers():
        oldest = moment(time_us(redis) - keep_us)
        for keys in _pages(redis, on_progress):
            lists = ask_each(redis, keys, lambda pipe, found: pipe.lrange(found[0], 0, -1))
            for (_, user), entries in zip(keys, lists, strict=True):
                found = decode_records(user, (entry for entry in entries if entry.endswith(wanted)))
                if any(each.ended_at >= oldest for each in found):
                    return user
    return None


def _pages(redis: Any, on_progress: Callable[[int, int], None]) -> Iterator[list[tuple[bytes, str]]]:
    """Yield the keys of histories, each with its user."""
    prefix = redis_key("history")
    name = re.compile(re.escape(prefix.encode()) + rb":\{(.*)\}:[01]", re.DOTALL)
    cursor, seen, in_all = -1, 0, redis.dbsize()
    while cursor:
        cursor, page = redis.scan(max(cursor, 0), match=f"{prefix}:*", count=A_LOOK)
        yield [(key, found[1].decode(errors="replace")) for key in page if (found := name.fullmatch(key))]
        seen += A_LOOK
        on_progress(min(seen, in_all), in_all)
