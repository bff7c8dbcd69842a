"""The calls by which an audit judges and repairs, each in one step. Scripts of the same names have the contracts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from notifier.rules.category import LANES
from notifier.scripts.loader import Call, script

_LANES: Final = json.dumps(LANES)


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency, in words. done: the repair; '' if the caller asked for none.

    what: the subject, such as 'job 5f…'. saw: its state. right: the state that would be right. left: not repaired.
    """

    what: str
    saw: str
    right: str
    done: str = ""

    @property
    def left(self) -> bool:
        return not self.done or self.done.startswith("left")

    def __str__(self) -> str:
        done = f" — {self.done}" if self.done else ""
        return f"{self.what} {self.saw}; right would be: {self.right}{done}"


@dataclass(frozen=True, slots=True)
class Judged:
    """The reply of *audit_job*. queued: ids that must be in their queues. notifications: how many jobs were ours."""

    queued: list[bytes]
    notifications: int
    findings: list[Finding]


def audit_jobs(job_ids: Sequence[bytes], *, repair: bool, lease_us: int, unlisted: bool = False) -> Call[Judged]:
    """Judge jobs. unlisted: the caller has seen them queued, then read their queues and not found them there.

    lease_us: how long a worker's lease lasts.
    """
    args: list[str | bytes | int] = ["", int(repair), _LANES, lease_us]
    for job_id in job_ids:
        args += (job_id, "unlisted" if unlisted else "")
    return Call(script("audit_job"), [], args, lambda reply: Judged(reply[0], reply[1], _findings(reply[2])))


def audit_entries(entries: Sequence[tuple[bytes, bytes]], *, repair: bool, lease_us: int) -> Call[list[Finding]]:
    """Judge entries of sorted sets of jobs: (key, member)."""
    args: list[str | bytes | int] = ["", int(repair), lease_us]
    return Call(script("audit_entry"), [], args + [part for entry in entries for part in entry], _findings)


def audit_keys(entries: Sequence[tuple[bytes, bytes]], *, repair: bool, lease_us: int) -> Call[list[Finding]]:
    """Judge keys other than jobs: (a key, b'') or (a set, its member)."""
    args: list[str | bytes | int] = ["", int(repair), _LANES, lease_us]
    return Call(script("audit_key"), [], args + [part for entry in entries for part in entry], _findings)


def audit_queue(lane: str, start: int, most: int, *, repair: bool) -> Call[tuple[int, list[Finding]]]:
    """Judge jobs in a lane's queue, from a place counted from the tail; also return how many were read."""
    args: list[str | bytes | int] = [int(repair), lane, start, most]
    return Call(script("audit_queue"), [], args, lambda reply: (reply[0], _findings(reply[1])))


def audit_types(entries: Sequence[tuple[bytes, bytes]], *, repair: bool, **_: int) -> Call[list[Finding]]:
    """Judge the types of keys: (key, the types that it may have)."""
    return Call(script("audit_type"), [], [int(repair), *(part for entry in entries for part in entry)], _findings)


def _findings(reply: list[list[bytes]]) -> list[Finding]:
    return [Finding(*(part.decode(errors="replace") for part in parts)) for parts in reply]
