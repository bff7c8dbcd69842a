"""The calls about a throttled function while RQ runs it: its permit stands ahead, and is closed when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from notifier.dispatch.retention import KEEP_NOTHING, Retention
from notifier.scripts.loader import Call, script
from notifier.scripts.records import RunFields, Text

ROUTE: Final = "rq"  # in the history and the numbers, where a notification has its provider


@dataclass(frozen=True, slots=True)
class RqRun:
    """A job of a throttled function under its permit. accepted, held: what its hash told of the time before."""

    job_id: str
    permit: str
    user: str
    category: str
    accepted: bytes = b""
    held: bytes = b""


def hold_permit(run: RqRun, ahead_us: int, clock: str = "") -> Call[bool]:
    """Date its permit so far ahead: until then the limits take it for a send to come."""
    return Call(script("rq_run"), [], _run(run, clock, ahead_us=ahead_us), bool)


def close_run(
    run: RqRun,
    outcome: str,
    *,
    reached: bool,
    is_end: bool,
    took_us: int,
    worker: str,
    version: str,
    keep: Retention = KEEP_NOTHING,
    clock: str = "",
) -> Call[bool]:
    """Close its permit, and count what became of it. is_end: False where RQ tries it again."""
    answer = "" if outcome == "delivered" else f",{outcome}"
    handed = f"{took_us} {ROUTE},,{took_us / 1000:.0f}{answer}"
    args = _run(
        *(run, clock),
        reached=int(reached),
        outcome=outcome,
        keep=keep.encode(),
        is_end=int(is_end),
        handed=handed,
        worker=worker,
        version=version,
    )
    return Call(script("rq_run"), [], args, bool)


def _run(run: RqRun, clock: str, **more: Text) -> RunFields:
    """Build the arguments that both calls share, and `more`."""
    return RunFields(clock, run.permit, run.user, run.category, run.job_id, run.accepted, run.held, **more)
