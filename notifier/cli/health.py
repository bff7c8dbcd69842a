"""The command health: what a liveness probe runs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer

from notifier.cli.given import GIVEN
from notifier.cli.options import duration_us, without_rates
from notifier.cli.output import answer, complain
from notifier.errors import RedisUnusableError
from notifier.queue.health import Alive, find_refusal, find_workers
from notifier.scripts.keys import rq_key
from notifier.settings import Settings
from notifier.store.connection import eviction_warning
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import opened_all, ranges
from notifier.store.pipelining import ask_all


def health(
    *,
    worker: Annotated[str | None, typer.Option(help="only this worker, on any host")] = None,
    host: Annotated[bool, typer.Option("--host", help="any worker of this host (the default)")] = False,
    within: Annotated[str, typer.Option(help="how long ago it must have looked for work at most")] = "30s",
) -> None:
    """Check whether a worker of this host works: exit status 0 if one has looked for work in the last 30 seconds.

    Exit status 1 also if `rq suspend` keeps all workers from work. Exit status 4 if Redis does not answer or is full:
    then nobody can tell, and restarting a worker would not help.
    """
    if worker is not None and host:
        raise typer.BadParameter("give one of --worker and --host", param_hint="--host")
    within_us = duration_us(within, "--within")
    here = socket.gethostname()
    settings = without_rates()
    seen = _look(settings, lambda each: each.host == here if worker is None else each.name == worker, within_us)
    mine = list(seen.mine.values())
    healthy = [each for each in mine if each.is_healthy(within_us)]
    if seen.away and not healthy:
        raise next(iter(seen.away.values()))
    workers = [asdict(each) | {"healthy": each in healthy} for each in mine]
    right = bool(healthy) and (not seen.suspended or bool(seen.suspended_in))
    told = {"healthy": right, "suspended": seen.suspended, "warning": seen.warning, "host": here, "workers": workers}
    of_parts = {"unserved": seen.unserved, "suspended_in": seen.suspended_in, "away": list(seen.away)}
    parts = of_parts if settings.redis.partitions > 1 else {}
    if not mine and not GIVEN.json:
        complain(f"no worker is named {worker}" if worker else f"no worker runs on this host, {here}")
    for complaint in [] if GIVEN.json else seen.complaints():
        complain(complaint)
    answer(
        told | parts,
        *(f"{each.name} on {each.host}: {_told(each, within_us)}" for each in mine),
        right=right,
    )


@dataclass(slots=True)
class _Seen:
    """Findings of all partitions. mine: the workers that are meant. unserved: partitions without a worker.

    suspended_in: those in which `rq suspend` is in force; empty where it is in all.
    """

    mine: dict[str, Alive] = field(default_factory=dict)
    unserved: list[int] = field(default_factory=list)
    away: dict[int, RedisUnusableError] = field(default_factory=dict)
    suspended: bool = False
    suspended_in: list[int] = field(default_factory=list)
    warning: str = ""

    def complaints(self) -> Iterator[str]:
        """Say what is wrong, for people."""
        if self.unserved:
            yield f"no worker serves partition {ranges(self.unserved)}"
        if self.away:
            yield f"partition {ranges(list(self.away))}: {next(iter(self.away.values()))}"
        if self.suspended:
            where = f"partition {ranges(self.suspended_in)}: " if self.suspended_in else ""
            yield f"{where}suspended by rq suspend: nothing is sent until rq resume"
        if self.warning:
            yield self.warning


def _look(settings: Settings, is_meant: Callable[[Alive], bool], within_us: int) -> _Seen:
    """Raises RedisUnusableError where no partition answers."""

    def find() -> Exchange[tuple[list[Alive], bool, str]]:
        found = yield from find_workers()
        suspended, memory = yield Commands(lambda pipe: [pipe.exists(rq_key("suspended")), pipe.info("memory")])
        works = any(is_meant(each) and each.is_healthy(within_us) for each in found)
        if not works and (why := (yield from find_refusal(memory))):
            raise RedisUnusableError(f"Redis {why}")
        return found, bool(suspended), eviction_warning(memory)

    with opened_all(settings) as partitions:
        told, several = ask_all(partitions, find), len(partitions) > 1
    suspended_in = [number for number, (_, suspended, _) in told.found.items() if suspended]
    seen = _Seen(away=told.away, suspended=bool(suspended_in))
    seen.suspended_in = [] if len(suspended_in) == len(told.found) else suspended_in
    for number, (found, _, warning) in told.found.items():
        seen.warning = seen.warning or warning
        if several and not any(each.is_healthy(within_us) for each in found):
            seen.unserved.append(number)
        for each in filter(is_meant, found):  # of a worker of several partitions, where it looked last
            seen.mine[each.name] = min(each, seen.mine.get(each.name, each), key=lambda alive: alive.age_us)
    return seen


def _told(alive: Alive, within_us: int) -> str:
    ago = f"{alive.age_us / 1e6:.1f} s ago"
    if alive.rq_job and alive.is_healthy(within_us):
        return f"healthy, runs RQ's job {alive.rq_job}; heard of {ago}"
    return f"{'healthy' if alive.is_healthy(within_us) else 'NOT healthy'}, looked for work {ago}"
