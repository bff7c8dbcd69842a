"""RQ's queues, audited: lists, in which nothing can be looked up, read in pieces while they move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from redis import Redis

from notifier.operations.audit.calls import Finding, audit_jobs, audit_queue
from notifier.rules.category import LANES
from notifier.scripts.keys import rq_key
from notifier.scripts.loader import run
from notifier.store.connection import pieces

MAX_EXPECTED: Final = 100_000  # names kept in memory
PIECE: Final = 500
OVERLAP: Final = 50  # what RQ takes out of the middle between two pieces moves what is behind it
JUDGED_A_CALL: Final = 100
UNLISTED_A_CALL: Final = 25


class Queues:
    """Compares the queues with the jobs that say they are queued.

    A job of ours that is queued stays in its list until it has another status, and a list is read from its tail, where
    what comes in between is only seen twice. So what was queued before a reading, was not in it and is queued after it,
    stands in no list.
    """

    def __init__(self, redis: Redis, *, repair: bool, lease_us: int) -> None:
        self._redis: Any = redis
        self._repair = repair
        self._lease_us = lease_us
        self._expected: set[bytes] = set()

    def expect(self, job_ids: Iterable[bytes]) -> Iterator[Finding]:
        """Note jobs that are queued; looks for them when there are many."""
        self._expected.update(job_ids)
        if len(self._expected) >= MAX_EXPECTED:
            yield from self._look_for_expected()

    def findings(self) -> Iterator[Finding]:
        """Report what stands in a queue and should not, and what should and does not.

        What has ended there is no fault, as a worker passes over it.
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
