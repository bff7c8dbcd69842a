"""The calls about waiting jobs: cancel, sweep, steer, retime. One round trip each; see `calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

from notifier.notification.job import encode_reason
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.scripts.keys import rq_key
from notifier.scripts.loader import Call, script
from notifier.units import from_bytes, to_bytes

SWEPT_AT_ONCE: Final = 100  # as in sweep.lua
EXPIRED: Final = "expired while it waited"

Cancelled = Literal["cancelled", "sending", "ended", "unknown"]


def cancel(job_ids: Sequence[str], keep: Retention, *, clock: str = "") -> Call[list[Cancelled]]:
    """Cancel jobs. The reply has for each 'cancelled', 'sending', 'ended' or 'unknown'."""
    args: list[str | bytes] = [clock, keep.encode(), *map(to_bytes, job_ids)]
    return Call(script("cancel"), [], args, lambda reply: [cast("Cancelled", from_bytes(answer)) for answer in reply])


def sweep(lanes: Sequence[str], keep: Retention, *, lease_us: int, clock: str = "") -> Call[tuple[int, int, int]]:
    """End jobs that RQ's own cancel has left in backlogs, and jobs that have expired behind others.

    The reply is how many jobs ended or were gone, at most `SWEPT_AT_ONCE` of each kind, and leases were shortened; then
    the two values of `leaders.follow`.
    lease_us: the caller's. A lease that ends much later is from before Redis's clock was set back, and is shortened.
    """
    return Call(script("sweep"), [], [clock, keep.encode(), encode_reason(EXPIRED), lease_us, *lanes], tuple)


def steer(metas: Sequence[tuple[bytes, str]], permit: str = "") -> Call[bool]:
    """Write the meta of jobs that *pull* gave to the caller to read: (job id, meta; '' if it is no notification).

    permit: under which the caller has leased them; '' if they are still in their queue.
    """
    return Call(script("steer"), [], [part for job_id, meta in metas for part in (job_id, meta, permit, "")], bool)


def aim(targets: Mapping[str, str]) -> Call[bool]:
    """Write the targets of heads that *pull* has asked for, by job id; see `targets.lua`."""
    args = [part for job_id, text in targets.items() for part in (to_bytes(job_id), "", "", text)]
    return Call(script("steer"), [], args, bool)


def retime(lane: str, cursor: str, *, max_users: int, clock: str = "") -> Call[str]:
    """Make about `max_users` of a lane's wake-ups due; the reply is the next cursor, '0' at the end."""
    return Call(script("retime"), [], [clock, lane, cursor, max_users], from_bytes)


def queue_keys() -> list[str]:
    """Return the keys of RQ's queues: lists of jobs that no worker has seen yet."""
    return [rq_key("queue", lane) for lane in LANES]
