"""The command that audits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from redis import Redis

from notifier.cli.output import JsonOption, ProgressBar, ShardOption, Status, counted, print_json, say
from notifier.operations.audit.audit import Audit
from notifier.settings import Settings, load_settings
from notifier.shards.map import connect_all, on_shard


def audit(
    context: typer.Context,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="repair what is found; nothing is lost or sent twice")
    ] = False,
    shard: ShardOption = None,
    json: JsonOption = False,
) -> None:
    """Check Redis for inconsistent or orphaned entries, while the workers work. Exit status 1 if there is one.

    With --repair: exit status 1 if one is left. With --json: a line for each problem, and one with the counts.
    """
    settings = load_settings(context.obj)
    left = 0
    with connect_all(settings if shard is None else settings.redis.shard(settings.redis.which(shard))) as clients:
        for name, redis in clients.items():
            with on_shard(name):
                left += _audit(redis, settings, name, repair=repair, json=json)
    if left:
        raise typer.Exit(Status.NOT_RIGHT)


def _audit(redis: Redis, settings: Settings, shard: str, *, repair: bool, json: bool) -> int:
    """Audit one Redis and tell what is found; returns how much of it is left."""
    found = left = 0
    of_shard = {"shard": shard} if shard else {}
    with ProgressBar(f"audit {shard}".rstrip()) as bar:
        work = Audit(
            redis,
            keep_failed_us=settings.keep_failed_us,
            lease_us=settings.worker.lease_us,
            repair=repair,
            on_progress=bar.move,
        )
        for finding in work.findings():
            found += 1
            left += finding.left
            print_json(of_shard | asdict(finding) | {"left": finding.left}) if json else say(str(finding))
    if json:
        print_json(of_shard | {"jobs": work.jobs, "users": work.users, "found": found, "left": left})
    else:
        counts = f"{counted(work.jobs, 'job')}, {counted(work.users, 'user')}: {_verdict(found, left, repair=repair)}"
        say(f"shard {shard}: {counts}" if shard else counts)
    return left


def _verdict(found: int, left: int, *, repair: bool) -> str:
    if not found:
        return "all right"
    if not repair:
        return f"{counted(found, 'problem')}; --repair repairs them as far as possible"
    return f"{found - left:,} repaired" + (f", {left:,} left" if left else "")
