"""The calls about what waits: cancel, sweep, steer, retime. One round trip each; see `calls`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from notifier.notification.job import encode_reason
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.scripts.keys import rq_key
from notifier.scripts.loader import Call, script
from notifier.scripts.records import CancelOfFields
from notifier.units import from_bytes, to_bytes

MAX_LOOKED_AT: Final = 250  # in one call
SWEPT_AT_ONCE: Final = 100  # as in sweep.lua
EXPIRED: Final = "expired while it waited"

Cancelled = Literal["cancelled", "sending", "ended", "unknown"]


def cancel(job_ids: Sequence[str], keep: Retention, *, clock: str = "") -> Call[list[Cancelled]]:
    """Cancel jobs; the reply is for each 'cancelled', 'sending', 'ended' or 'unknown'."""
    args = [clock, keep.encode(), *job_ids]
    return Call(script("cancel"), [], args, lambda reply: [cast("Cancelled", from_bytes(answer)) for answer in reply])


@dataclass(frozen=True, slots=True)
class Kind:
    """Which notifications of a user are meant: of each that is given, those that have it; None is any."""

    category: str | None = None
    collapse_id: str | None = None
    tag: str | None = None

    def __str__(self) -> str:
        """Say it for a log."""
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value)


class CancelledPage(NamedTuple):
    """One page of `cancel_of`. cursor: to go on from; '0' at the end. places: to look through after it."""

    cursor: str
    places: list[str]
    cancelled: list[str]
    too_late: list[str]


def cancel_of(
    user: str,
    kind: Kind,
    place: str,
    cursor: str = "0",
    *,
    keep: Retention,
    max_jobs: int = MAX_LOOKED_AT,
    clock: str = "",
) -> Call[CancelledPage]:
    """Cancel a page of what waits for a user and is of a kind. place: 'all', or 'tagged' for a kind with a tag."""
    wanted = {name: value for name, value in asdict(kind).items() if value is not None}
    args = CancelOfFields(
        *(clock, keep.encode(), to_bytes(user)),
        kind=to_bytes(json.dumps(wanted, ensure_ascii=False)),
        place=to_bytes(place),
        cursor=cursor,
        max_jobs=max_jobs,
    )

    def decode(reply: list[Any]) -> CancelledPage:
        next_cursor, places, cancelled, late = reply
        return CancelledPage(from_bytes(next_cursor), *([*map(from_bytes, each)] for each in (places, cancelled, late)))

    return Call(script("cancel_of"), [], args, decode)


def sweep(lanes: Sequence[str], keep: Retention, *, clock: str = "") -> Call[int]:
    """End what RQ's own cancel has left behind, and what has expired behind others; the reply is how many jobs.

    It ends at most `SWEPT_AT_ONCE` of each kind.
    """
    return Call(script("sweep"), [], [clock, keep.encode(), encode_reason(EXPIRED), *lanes], int)


def steer(metas: Sequence[tuple[bytes, str]], permit: str = "") -> Call[bool]:
    """Say of jobs that *pull* gave to be read which meta their data tells; '' of one that is no notification.

    permit: under which the caller holds them; '' where they were left in their queue.
    """
    return Call(script("steer"), [], [part for job_id, meta in metas for part in (job_id, meta, permit)], bool)


def retime(lane: str, cursor: str, *, max_users: int, clock: str = "") -> Call[str]:
    """Make about `max_users` of a lane's wake-ups due; the reply is the next cursor, '0' at the end."""
    return Call(script("retime"), [], [clock, lane, cursor, max_users], from_bytes)


def queue_keys() -> list[str]:
    """Return the keys of the lists in which stands what no worker has seen yet."""
    return [rq_key("queue", lane) for lane in LANES]
