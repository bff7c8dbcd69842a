"""Audit RQ's queues: lists without an index, which are read in pieces while they change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from redis import Redis

from notifier.operations.audit.calls import Finding, audit_jobs, audit_queue
from notifier.rules.category import LANES
from notifier.scripts.keys import rq_key
from notifier.scripts.loader import run
from notifier.store.connection import pieces

MAX_EXPECTED: Final = 100_000  # ids kept in memory
PIECE: Final = 500
OVERLAP: Final = 50  # read again, as jobs that RQ removes between two reads shift those behind
JUDGED_A_CALL: Final = 100
UNLISTED_A_CALL: Final = 25


class Queues:
    """Compares the queues with the jobs whose status is queued.

    A queued notification stays in its list until its status changes. The audit reads a list from its tail, so a job
    that is pushed meanwhile only makes it read others twice. So if a job is queued before and
    after a reading, and the reading did not find the job, no list has it.
    """

    def __init__(self, redis: Redis, *, repair: bool, lease_us: int) -> None:
        self._redis: Any = redis
        self._repair = repair
        self._lease_us = lease_us
        self._expected: set[bytes] = set()

    def expect(self, job_ids: Iterable[bytes]) -> Iterator[Finding]:
        """Note queued jobs; once there are many, search the queues for them."""
        self._expected.update(job_ids)
        if len(self._expected) >= MAX_EXPECTED:
            yield from self._look_for_expected()

    def findings(self) -> Iterator[Finding]:
        """Yield jobs that a queue has and should not have, and jobs that it lacks.

        A cancelled or deleted job in a queue is no fault: a worker skips it.
        """
        for lane in LANES:
            start, found = 0, JUDGED_A_CALL
            while found == JUDGED_A_CALL:
                found, findings = run(self._redis, audit_queue(lane, start, JUDGED_A_CALL, repair=self._repair))
                yield from findings
                taken_out = sum(not finding.left for finding in findings)
                start += found - taken_out
        yield from self._look_for_expected()

    def _look_for_expected(self) -> Iterator[Finding]:
        for lane in LANES:
            self._forget_listed(rq_key("queue", lane))
        missing = sorted(self._expected)
        self._expected.clear()
        for some in pieces(missing, UNLISTED_A_CALL):
            call = audit_jobs(some, repair=self._repair, lease_us=self._lease_us, unlisted=True)
            yield from run(self._redis, call).findings

    def _forget_listed(self, queue: str) -> None:
        start, piece = 0, [b""]
        while piece and self._expected:
            piece = self._redis.lrange(queue, -start - PIECE, -start - 1)
            self._expected.difference_update(piece)
            start += PIECE - OVERLAP
