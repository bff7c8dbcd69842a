"""Audits what bears a time: permits in the future that nobody is sending under, claims and circuits without an end.

A permit stands in the future while its job is in flight under a lease, never before and never again. So one that did
before all leases were read, and does after it, and belongs to none of them, was left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from redis import Redis

from notifier.operations.audit.calls import Finding, Kind, audit_key
from notifier.rules.category import LANES
from notifier.scripts.keys import is_key, job_key, redis_key, rq_key
from notifier.scripts.loader import run
from notifier.store.connection import ask_each, pieces, time_us

MAX_NOTED: Final = 10_000
A_LOOK: Final = 100
DONE: Final = {
    "permit": "dated now", "claim": "removed", "waits_for_route": "removed", "route": "asked for by a probe now",
}  # fmt: skip
MAX_CIRCUIT_US: Final = 2 * 86_400_000_000  # a provider is asked again within a day


class Times:
    """Looks at permits, claims and who waits for a route, a page of keys at a time."""

    def __init__(self, redis: Redis, *, repair: bool) -> None:
        self._redis: Any = redis
        self._repair = repair
        self._noted: set[tuple[bytes, bytes]] = set()

    def look_at(self, keys: list[bytes]) -> Iterator[Finding]:
        """Judge what is clear at once, and note what is not; of other keys nothing."""
        sets = [key for key in keys if is_key(key, "sent") or _is_device(key)]
        self._note(sets)
        if len(self._noted) >= MAX_NOTED:
            yield from self.findings()
        yield from self._endless([key for key in keys if is_key(key, "claim")])
        for key in keys:
            if is_key(key, "waiting_for_route"):
                yield from self._waits_for_route(key)
            elif is_key(key, "route"):
                yield from self._circuit(key)

    def findings(self) -> Iterator[Finding]:
        """Judge what was noted."""
        if not self._noted:
            return
        held = self._permits_in_flight()
        suspects = sorted(entry for entry in self._noted if entry[1].partition(b"#")[0] not in held)
        self._noted.clear()
        now_us = time_us(self._redis)
        for key, permit in suspects:
            at = self._redis.zscore(key, permit)
            if at is not None and at > now_us:
                saw = f"is dated {at:.0f} µs in {shown(key)}, in the future, and nothing is in flight under it"
                done = self._put_right("permit", key, permit)
                yield Finding(f"permit {shown(permit)}", saw, "dated now, as it may have been used", done)

    def _note(self, sets: list[bytes]) -> None:
        later = f"({time_us(self._redis) if sets else 0}"
        for some in pieces(sets, A_LOOK):
            found = ask_each(self._redis, some, lambda pipe, key: pipe.zrangebyscore(key, later, "+inf", 0, A_LOOK))
            for key, permits in zip(some, found, strict=True):
                self._noted.update((key, permit) for permit in permits)

    def _permits_in_flight(self) -> set[bytes]:
        """The permits of all leases; and of RQ's started registries, where those of deleted jobs stand too."""
        held = set()
        in_flight = [job_id for job_id, _ in self._redis.zscan_iter(redis_key("leases"), count=A_LOOK)]
        for lane in LANES:
            for entry, _ in self._redis.zscan_iter(rq_key("wip", lane), count=A_LOOK):
                job_id, _, permit = entry.rpartition(b":")
                held.add(permit)
                in_flight.append(job_id)
        for some in pieces(in_flight, A_LOOK):
            told = ask_each(self._redis, some, lambda pipe, job: pipe.hmget(job_key(job), "push_permit", "push_rq_job"))
            held.update(permit for both in told for permit in both if permit)
        return held

    def _endless(self, claims: list[bytes]) -> Iterator[Finding]:
        left = ask_each(self._redis, claims, lambda pipe, key: pipe.pttl(key))
        for key, ms in zip(claims, left, strict=True):
            if ms == -1:
                saw = "is kept for ever, and holds its backlog for one worker"
                yield Finding(f"claim {shown(key)}", saw, "gone with its lease", self._put_right("claim", key))

    def _waits_for_route(self, key: bytes) -> Iterator[Finding]:
        route = key.removeprefix(redis_key("waiting_for_route", "").encode())
        with self._redis.pipeline() as pipe:
            pipe.sismember(redis_key("routes"), route)
            pipe.exists(key)
            is_held, exists = pipe.execute()
        if exists and not is_held:
            saw = "holds up users, and that route is not held"
            done = self._put_right("waits_for_route", key, route)
            yield Finding(f"waiting for a route {shown(key)}", saw, "gone, and its users with wake-ups", done)

    def _circuit(self, key: bytes) -> Iterator[Finding]:
        state, until = self._redis.hmget(key, "state", "until")
        if state == b"paused" or until is None:  # a person says until when, and may say for ever
            return
        if not until.isdigit() or int(until) > time_us(self._redis) + MAX_CIRCUIT_US:
            saw = f"is {shown(state or b'')} until {shown(until)}"
            yield Finding(
                f"circuit {shown(key)}", saw, "a time in µs, within two days", self._put_right("route", key, until)
            )

    def _put_right(self, kind: Kind, key: bytes, of: bytes = b"") -> str:
        if not self._repair:
            return ""
        return DONE[kind] if run(self._redis, audit_key(kind, key, of)) else "right again by itself"


def _is_device(key: bytes) -> bool:
    return is_key(key, "device") and key.count(b":") == redis_key("device", "").count(":")


def shown(name: bytes) -> str:
    """A name of Redis as text."""
    return name.decode(errors="replace")
