"""The calls about jobs in flight with a worker: *begin*, *renew*, and *rq_run* for jobs that RQ runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from notifier.scripts.loader import Call, script
from notifier.scripts.records import FlightFields, Leased, RunFields

ROUTE_OF_RQ: Final = "rq"  # in the history and the numbers, where a notification has its provider


def renew(flights: Sequence[tuple[Leased, str]], *, lease_us: int, claimant: str, clock: str = "") -> Call[list[bool]]:
    """Keep jobs in flight that were not answered. The reply has for each whether it still is, under its permit.

    flights: each with its devices' final answers as JSON, or ''.
    lease_us: for how long; 0 leaves them to the next worker that looks.
    """
    args: list[str | bytes | int] = [clock, lease_us, claimant]
    for flight, answered in flights:
        args += FlightFields(flight.job_id, flight.permit, flight.user, flight.category, answered)
    return Call(script("renew"), [], args, lambda reply: [bool(mine) for mine in reply])


def begin(job_id: str, permit: str) -> Call[bool]:
    """Note that this worker sends a suspect now. The reply is whether it still has the lease, and may send it."""
    return Call(script("begin"), [], [job_id, permit], bool)


def rq_run(args: RunFields) -> Call[bool]:
    """Date the permit of a throttled function ahead while RQ runs it: the limits count a send that is to come.

    Or, once the function has ended, close the permit and count the outcome.
    """
    return Call(script("rq_run"), [], args, bool)


def encode_run(outcome: str, took_us: int) -> str:
    """`RunFields.handed` of a run that has ended."""
    answer = "" if outcome == "delivered" else f",{outcome}"
    return f"{took_us} {ROUTE_OF_RQ},,{took_us / 1000:.0f}{answer}"
