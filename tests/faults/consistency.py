"""What every fault test ends with: the audit is clean."""

from __future__ import annotations

from typing import Any, Final

from redis import Redis

from notifier.operations.audit.audit import Audit

WORK: Final = (
    "rq:queue:*",
    "rq:scheduled:*",
    "rq:wip:*",
    "notifier:line:*",
    "notifier:lines:*",
    "notifier:gates:*",
    "notifier:later",
    "notifier:leases",
    "notifier:parked:*",
)
KEEP_FAILED_US: Final = 7 * 86_400_000_000
LEASE_US: Final = 3_000_000


def audit(redis: Any, *, repair: bool = False) -> list[str]:
    """What is wrong, for people; empty where all is well."""
    found = Audit(redis, keep_failed_us=KEEP_FAILED_US, lease_us=LEASE_US, repair=repair).findings()
    return [str(finding) for finding in found]


def assert_consistent(redis: Redis) -> None:
    """Fail, naming every stray, unless each job of ours stands where its status says and nowhere else.

    Holds between any two calls of scripts: while workers work, and while they are stopped or dead in the middle of it.
    """
    found = audit(redis)
    assert not found, "\n".join(found)


def assert_empty_of_work(redis: Redis) -> None:
    """Fail unless it is consistent, and nothing waits, is in flight, or is to be looked at any more."""
    assert_consistent(redis)
    left = [key for pattern in WORK for key in redis.scan_iter(pattern)]
    assert left == []
