"""What every fault test ends with: the audit is clean."""

from typing import Any, Final

from redis import Redis

from notifier.operations.audit.audit import Audit
from notifier.scripts.keys import declared

RQ_WORK: Final = ("queue:*", "scheduled:*", "wip:*")
WORK: Final = ("backlog:*", "backlogs:*", "wakeups:*", "later", "leases", "waiting_for_route:*")
LEASE_US: Final = 60_000_000  # longer than that of any fleet


def audit(redis: Any, *, repair: bool = False, lease_us: int = LEASE_US) -> list[str]:
    """What is wrong, for people; empty where all is well."""
    found = Audit(redis, lease_us=lease_us, repair=repair).findings()
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
    assert work_left(redis) == []


def work_left(redis: Any) -> list[bytes]:
    """The keys of what waits, is in flight, or is to be looked at."""
    ours, rqs = declared()
    patterns = [*(ours + name for name in WORK), *(rqs + name for name in RQ_WORK)]
    return [key for pattern in patterns for key in redis.scan_iter(pattern)]
