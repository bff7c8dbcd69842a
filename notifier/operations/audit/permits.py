"""Find permits that are dated in the future and left behind, while workers run.

A permit is dated in the future only while its job is in flight under a lease. So a permit was left behind if it was
dated in the future before the audit read all leases, still is afterwards, and belongs to none of these leases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from redis import Redis

from notifier.rules.category import LANES
from notifier.scripts.key_types import is_key
from notifier.scripts.keys import job_key, redis_key, rq_key
from notifier.store.connection import ask_each, pieces, time_us

Entry = tuple[bytes, bytes]

MAX_NOTED: Final = 10_000
A_LOOK: Final = 100


class Permits:
    """Finds suspect permits, a page of keys at a time. Each comes with its key."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis
        self._noted: set[Entry] = set()

    def look_at(self, keys: list[bytes]) -> Iterator[Entry]:
        """Note permits of the future; yield suspects only if many are noted."""
        colons = redis_key("device", "").count(":")  # a key with more is another's, beside the sends of a device
        sets = [key for key in keys if is_key(key, "sent") or (is_key(key, "device") and key.count(b":") == colons)]
        later = f"({time_us(self._redis) if sets else 0}"
        for some in pieces(sets, A_LOOK):
            found = ask_each(self._redis, some, lambda pipe, key: pipe.zrangebyscore(key, later, "+inf", 0, A_LOOK))
            self._noted.update((key, permit) for key, permits in zip(some, found, strict=True) for permit in permits)
        if len(self._noted) >= MAX_NOTED:
            yield from self.suspects()

    def suspects(self) -> Iterator[Entry]:
        """Yield the noted permits that belong to no job in flight."""
        if self._noted:
            noted, self._noted = self._noted, set()
            held = self._in_flight()
            yield from sorted(entry for entry in noted if entry[1].partition(b"#")[0] not in held)

    def _in_flight(self) -> set[bytes]:
        """Return the permits of all leases, and of RQ's started registries, which also have those of deleted jobs."""
        held = set()
        in_flight = [job_id for job_id, _ in self._redis.zscan_iter(redis_key("leases"), count=A_LOOK)]
        for lane in LANES:
            for entry, _ in self._redis.zscan_iter(rq_key("wip", lane), count=A_LOOK):
                job_id, _, permit = entry.rpartition(b":")
                held.add(permit)
                in_flight.append(job_id)
        for some in pieces(in_flight, A_LOOK):
            jobs = ask_each(self._redis, some, lambda pipe, job: pipe.hmget(job_key(job), "push_permit", "push_rq_job"))
            held.update(permit for both in jobs for permit in both if permit)
        return held
