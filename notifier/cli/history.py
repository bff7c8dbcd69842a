"""The command history: what became of a user's notifications, and what held each one back."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from notifier.cli.output import (
    JsonOption,
    ProgressBar,
    Status,
    complain,
    counted,
    duration_us,
    print_json,
    print_rows,
    say,
)
from notifier.dispatch.history import Record
from notifier.operations.history import record_json, search_record
from notifier.producer.notifier import Notifier
from notifier.settings import Settings, load_settings
from notifier.shards.map import connect_all, on_shard
from notifier.units import seconds_text


def history(
    context: typer.Context,
    user: Annotated[str | None, typer.Argument(help="the user")] = None,
    *,
    job: Annotated[str | None, typer.Option(help="only this job; without USER all users are searched")] = None,
    since: Annotated[str | None, typer.Option(help="no older than this, such as 2h; else all that is kept")] = None,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many")] = 20,
    json: JsonOption = False,
) -> None:
    """Show what became of a user's notifications, the newest first, and what held each one back.

    Exit status 1 if there is no record.
    """
    if user is None and job is None:
        raise typer.BadParameter("give a user, or --job ID", param_hint="USER")
    oldest = None if since is None else timedelta(microseconds=duration_us(since, "--since", least_us=1))
    settings = load_settings(context.obj, rates={})
    if not settings.history.keep_us:
        complain("history is none in the configuration: what ends now leaves no record")
    if job is not None:
        _show_one(settings, user, job, json=json)
        return
    with Notifier.of(settings) as notifier:
        found = notifier.history(user or "", oldest)
    if json:
        print_json([record_json(record) for record in found[:limit]])
    else:
        print_rows(
            "",
            ("accepted", "category", "held back by, and how it ended", "job"),
            [_row(record) for record in found[:limit]],
            empty=f"no record of {user}",
        )
        if len(found) > limit:
            say(f"… and {counted(len(found) - limit, 'older one')}: --limit {len(found)}")
    if not found:
        raise typer.Exit(Status.NOT_RIGHT)


def _show_one(settings: Settings, user: str | None, job_id: str, *, json: bool) -> None:
    with Notifier.of(settings) as notifier:
        status = notifier.status(job_id, user)
    found = status.record if status is not None else None
    if found is None and user is None:
        found = _search(settings, job_id)
    if found is None:
        complain(f"{job_id}: no record" + ("" if user is None else f" of {user}"))
        raise typer.Exit(Status.NOT_RIGHT)
    if json:
        print_json(record_json(found))
        return
    say(f"{found.user}, {found.category}: {found.outcome or 'it has not ended'}")
    say(found.describe(zone=None))
    if found.worker:
        say(f"settled by {found.worker}" + (f", rates {found.rates}" if found.rates else ""))


def _search(settings: Settings, job_id: str) -> Record | None:
    with connect_all(settings) as clients, ProgressBar("all users") as bar:
        for name, redis in clients.items():
            with on_shard(name):
                if (found := search_record(redis, job_id, settings.history.keep_us, bar.move)) is not None:
                    return found
    return None


def _row(record: Record) -> tuple[object, ...]:
    """A line for each thing, so that it fits 80 columns."""
    held = [f"{seconds_text(seconds)} {what}" for what, seconds in record.totals().items()]
    why = record.reason or record.superseded_by
    ended = [f"{record.outcome} ({why})" if why else record.outcome, *map(str, record.replies)]
    told = "\n".join([*held, *ended])
    return (record.accepted_at or record.ended_at, record.category, told, record.job_id)
