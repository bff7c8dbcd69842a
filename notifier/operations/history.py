"""Records of the history as plain data; and one found by its job alone, as nothing leads from a job to its user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from notifier.queue.history import Record, decode_records
from notifier.scripts.keys import redis_key
from notifier.store.connection import ask_each, redis_answers, time_us
from notifier.units import moment

A_LOOK: Final = 500  # keys


def record_json(record: Record) -> dict[str, Any]:
    """All of a record as plain data. held: what held it back, in seconds; says: all of it in one line."""
    answered = [str(reply) for reply in record.replies]
    return asdict(record) | {
        "held_s": round(record.held_s, 6),
        "held": record.totals(),
        "answered": answered,
        "says": str(record),
    }


def search_record(
    redis: Any, job_id: str, keep_us: int, on_progress: Callable[[int, int], None] = lambda *_: None
) -> Record | None:
    """Look through the histories of all users. on_progress: of about how many keys how many have been looked at.

    keep_us: none that ended longer ago is shown. Raises RedisUnusableError.
    """
    wanted = b"\n" + job_id.encode()
    with redis_answers():
        oldest = moment(time_us(redis) - keep_us)
        for keys in _pages(redis, on_progress):
            lists = ask_each(redis, keys, lambda pipe, found: pipe.lrange(found[0], 0, -1))
            for (_, user), entries in zip(keys, lists, strict=True):
                if found := list(decode_records(user, (entry for entry in entries if entry.endswith(wanted)))):
                    newest = max(found, key=lambda each: each.ended_at)
                    return newest if newest.ended_at >= oldest else None
    return None


def _pages(redis: Any, on_progress: Callable[[int, int], None]) -> Iterator[list[tuple[bytes, str]]]:
    """The keys of histories, each with its user."""
    prefix = redis_key("history")
    name = re.compile(re.escape(prefix.encode()) + rb":\{(.*)\}:[01]", re.DOTALL)
    cursor, seen, in_all = -1, 0, redis.dbsize()
    while cursor:
        cursor, page = redis.scan(max(cursor, 0), match=f"{prefix}:*", count=A_LOOK)
        yield [(key, found[1].decode(errors="replace")) for key in page if (found := name.fullmatch(key))]
        seen += A_LOOK
        on_progress(min(seen, in_all), in_all)
