"""The calls of a worker about what it has in flight: *begin*, *renew*, and *rq_run* for what RQ runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from notifier.scripts.loader import Call, script
from notifier.scripts.records import FlightFields, Leased, RunFields

ROUTE_OF_RQ: Final = "rq"  # in the history and the numbers, where a notification has its provider


def renew(flights: Sequence[tuple[Leased, str]], *, lease_us: int, claimant: str, clock: str = "") -> Call[list[bool]]:
    """Keep in flight what nobody answered for. The reply holds for each whether it is in flight under its permit still.

    flights: each with what its devices answered finally, as JSON, or ''. lease_us: for how long; 0 gives them up to
    whoever looks next.
    """
    args: list[str | bytes | int] = [clock, lease_us, claimant]
    for flight, answered in flights:
        args += FlightFields(flight.job_id, flight.permit, flight.user, flight.category, answered)
    return Call(script("renew"), [], args, lambda reply: [bool(mine) for mine in reply])


def begin(job_id: str, permit: str) -> Call[bool]:
    """Note that a suspect is being sent alone; the reply tells whether it is still this worker's to send."""
    return Call(script("begin"), [], [job_id, permit], bool)


def rq_run(args: RunFields) -> Call[bool]:
    """Date the permit of a throttled function that RQ runs ahead, which the limits take for a send to come.

    Or close it when the function has ended, and count what became of it.
    """
    return Call(script("rq_run"), [], args, bool)


def encode_run(outcome: str, took_us: int) -> str:
    """Describe a run that has ended, as `RunFields.handed` has it."""
    answer = "" if outcome == "delivered" else f",{outcome}"
    return f"{took_us} {ROUTE_OF_RQ},,{took_us / 1000:.0f}{answer}"
