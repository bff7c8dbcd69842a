"""All that waits and is of a kind, whoever it is for: a page at a time, to be counted, exported or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from notifier.notification.json_values import fields_of
from notifier.queue.backlogs import queue_keys
from notifier.rules.category import LANES
from notifier.scripts.keys import job_key, rq_key
from notifier.store.connection import ask_each, pieces, redis_answers

PAGE: Final = 500
OVERLAP: Final = 100  # of two pages of a queue, as RQ may take jobs out of its middle


@dataclass(frozen=True, slots=True)
class Found:
    """One page. job_ids: those of the kind; users: whose they are. done, of: how much has been looked through."""

    job_ids: list[str]
    users: set[str]
    done: int
    of: int


def find_waiting(
    redis: Any, category: str | None = None, tag: str | None = None, user: str | None = None
) -> Iterator[Found]:
    """All that waits and is of a category and a user, and has a tag. Raises RedisUnusableError.

    The queues come first, then what waits, so that none that moves on meanwhile is missed. One may come twice.
    """

    def is_meant(of: Mapping[str, Any]) -> bool:
        known = category in {None, of.get("category", "default")} and user in {None, of.get("user")}
        return known and (tag is None or tag in of.get("tags", ()))

    with redis_answers():
        places = [(redis.llen(rq_key("queue", lane)), redis.zcard(rq_key("scheduled", lane))) for lane in LANES]
        done, of = 0, sum(map(sum, places))
        for ids in _pages(redis):
            done += len(ids)
            yield _of_kind(redis, ids, is_meant, (min(done, of), of))


def _pages(redis: Any) -> Iterator[Sequence[bytes]]:
    for queue in queue_keys():
        yield from _pages_of(redis, queue)
    for lane in LANES:
        for page in pieces(redis.zscan_iter(rq_key("scheduled", lane), count=PAGE), PAGE):
            yield [job_id for job_id, _ in page]


def _pages_of(redis: Any, queue: str) -> Iterator[Sequence[bytes]]:
    behind = 0  # from the end: what comes, and what is taken, moves no place that was not looked at
    while page := redis.lrange(queue, -behind - PAGE, -behind - 1):
        yield page
        if len(page) < PAGE:
            break
        behind += PAGE - OVERLAP


def _of_kind(
    redis: Any, ids: Sequence[bytes], is_meant: Callable[[Mapping[str, Any]], bool], far: tuple[int, int]
) -> Found:
    told = ask_each(redis, ids, lambda pipe, job_id: pipe.hmget(job_key(job_id), "meta", "push_outcome"))
    found, users = [], set[str]()
    for job_id, (meta, outcome) in zip(ids, told, strict=True):
        fields = fields_of(meta)
        if "user" in fields and outcome is None and is_meant(fields):
            found.append(job_id.decode(errors="replace"))
            users.add(str(fields["user"]))
    return Found(found, users, *far)
