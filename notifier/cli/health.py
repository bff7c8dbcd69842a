"""The command health: what a liveness probe runs."""

from __future__ import annotations

import socket
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from notifier.cli.output import JsonOption, Status, complain, duration_us, print_json, say
from notifier.dispatch.health import Alive, check_memory, read_workers
from notifier.settings import load_settings
from notifier.shards.map import connect_all, on_shard
from notifier.store.connection import ask


def health(
    context: typer.Context,
    *,
    worker: Annotated[str | None, typer.Option(help="only this worker, on any host")] = None,
    host: Annotated[bool, typer.Option("--host", help="any worker of this host (the default)")] = False,
    within: Annotated[str, typer.Option(help="how long ago it must have looked for work at most")] = "30s",
    json: JsonOption = False,
) -> None:
    """Check whether a worker of this host works: exit status 0 if one has looked for work in the last 30 seconds.

    Exit status 4 if Redis does not answer or is full: then nobody can tell, and restarting a worker would not help.
    """
    if worker is not None and host:
        raise typer.BadParameter("give one of --worker and --host", param_hint="--host")
    within_us = duration_us(within, "--within")
    here = socket.gethostname()
    found: list[Alive] = []
    with connect_all(load_settings(context.obj, rates={})) as clients:
        for name, redis in clients.items():
            with on_shard(name):
                found += ask(partial(read_workers, redis))
        mine = [each for each in found if (each.host == here if worker is None else each.name == worker)]
        healthy = [each for each in mine if each.is_healthy(within_us)]
        if not healthy:
            for name, redis in clients.items():
                with on_shard(name):
                    ask(partial(check_memory, redis))
    if json:
        told = [asdict(each) | {"healthy": each in healthy} for each in mine]
        print_json({"healthy": bool(healthy), "host": here, "workers": told})
    else:
        for each in mine:
            say(f"{each.name} on {each.host}: {_told(each, within_us)}")
        if not mine:
            complain(f"no worker is named {worker}" if worker else f"no worker runs on this host, {here}")
    if not healthy:
        raise typer.Exit(Status.NOT_RIGHT)


def _told(alive: Alive, within_us: int) -> str:
    ago = f"{alive.age_us / 1e6:.1f} s ago"
    if alive.rq_job and alive.is_healthy(within_us):
        return f"healthy, runs RQ's job {alive.rq_job}; heard of {ago}"
    return f"{'healthy' if alive.is_healthy(within_us) else 'NOT healthy'}, looked for work {ago}"
