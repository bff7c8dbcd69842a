"""The calls of a worker about what it has in flight: *begin* and *renew*."""

from __future__ import annotations

from collections.abc import Sequence

from notifier.queue.calls import Leased
from notifier.scripts.loader import Call, script
from notifier.scripts.records import FlightFields


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
