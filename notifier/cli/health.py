"""The command `health`, for liveness probes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from notifier.cli.given import GIVEN
from notifier.cli.options import duration_us, without_rates
from notifier.cli.output import answer, complain
from notifier.errors import RedisUnusableError
from notifier.operations.stats import Now, read_now
from notifier.queue.health import Alive
from notifier.store.connection import EVICTS, eviction_warning
from notifier.store.partitions import opened_all, ranges


def health(
    *,
    worker: Annotated[str | None, typer.Option(help="only this worker, on any host")] = None,
    within: Annotated[str, typer.Option(help="it must have looked for work within this time")] = "30s",
) -> None:
    """Check whether a worker of this host works: exit status 0 if one has looked for work in the last 30 seconds.

    Exit status 1 also if all workers are suspended (`rq suspend`). Exit status 4 if Redis does not answer or refuses
    writes: then nobody can say whether a worker works, and a restart would not help.
    """
    within_us = duration_us(within, "--within")
    here, settings = socket.gethostname(), without_rates()
    with opened_all(settings) as partitions:
        now = read_now(partitions)
        warning = partitions.ask_any(lambda redis: eviction_warning(redis.info("memory")))
    warning = f"Redis {EVICTS.format(now.evicts)}" if now.evicts else warning  # perhaps of another node
    mine = [each for each in now.workers if (each.host == here if worker is None else each.name == worker)]
    healthy = [each for each in mine if each.is_healthy(within_us)]
    if not healthy and (why := f"Redis {now.refuses}" if now.refuses else next(iter(now.away.values()), "")):
        raise RedisUnusableError(why)
    right = bool(healthy) and (not now.suspended or bool(now.suspended_in))
    workers = [asdict(each) | {"healthy": each in healthy} for each in mine]
    value = {"healthy": right, "suspended": bool(now.suspended), "warning": warning, "host": here, "workers": workers}
    of_parts = {"unserved": now.unserved, "suspended_in": now.suspended_in, "away": list(now.away)}
    parts = of_parts if settings.redis.partitions > 1 else {}
    if not GIVEN.json:
        if not mine:
            complain(f"no worker is named {worker}" if worker else f"no worker runs on this host, {here}")
        for complaint in filter(None, [*_complaints(now), warning]):
            complain(complaint)
    answer(value | parts, *(f"{each.name} on {each.host}: {_describe(each, within_us)}" for each in mine), right=right)


def _complaints(now: Now) -> Iterator[str]:
    if now.unserved:
        yield f"no worker serves partition {ranges(now.unserved)}"
    if now.away:
        yield f"partition {ranges(list(now.away))}: {next(iter(now.away.values()))}"
    if now.suspended:
        where = f"partition {ranges(now.suspended_in)}: " if now.suspended_in else ""
        yield f"{where}suspended by rq suspend: nothing is sent until rq resume"


def _describe(alive: Alive, within_us: int) -> str:
    ago = f"{alive.age_us / 1e6:.1f} s ago"
    if alive.rq_job and alive.is_healthy(within_us):
        return f"healthy, runs RQ's job {alive.rq_job}; heard of {ago}"
    return f"{'healthy' if alive.is_healthy(within_us) else 'NOT healthy'}, looked for work {ago}"
