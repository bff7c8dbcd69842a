"""The command `history`: how a user's notifications ended, and what held each one back."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from notifier.cli.explain import record_lines
from notifier.cli.given import GIVEN
from notifier.cli.options import duration_us, without_rates
from notifier.cli.output import ProgressBar, Rows, answer, complain
from notifier.operations.history import record_json, search_user
from notifier.producer.notifier import Notifier
from notifier.queue.history import Record
from notifier.settings import Settings
from notifier.store.partitions import each_opened
from notifier.texts import seconds_text
from notifier.units import counted


def history(
    user: Annotated[str | None, typer.Argument(help="the user")] = None,
    *,
    job: Annotated[str | None, typer.Option(help="show only this job; without USER it searches all users")] = None,
    since: Annotated[str | None, typer.Option(help="no older than this, such as 2h  [default: all]")] = None,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many")] = 20,
) -> None:
    """Show how a user's notifications ended, the newest first, and what held each one back.

    Exit status 1 if there is no record.
    """
    if user is None and job is None:
        raise typer.BadParameter("give a user, or --job ID", param_hint="USER")
    oldest = None if since is None else timedelta(microseconds=duration_us(since, "--since", least_us=1))
    settings = without_rates()
    if not settings.history.keep_us:
        complain("history.keep is 0s in the configuration: what ends now leaves no record")
    if job is not None:
        _show_one(settings, user, job)
        return
    with Notifier.of(settings) as notifier:
        found = notifier.history(user or "", oldest)
    lately = "" if since is None else f" in the last {since}"
    columns = ("accepted", "category", "held back by, and how it ended", "job")
    nothing = f"no record of {user}{lately}; what waits: notifier line USER"
    answer(
        [record_json(record) for record in found[:limit]],
        Rows(columns, [_row(record) for record in found[:limit]], empty=nothing),
        *([f"… and {counted(len(found) - limit, 'older one')}: --limit {len(found)}"] if len(found) > limit else []),
        right=bool(found),
    )


def _show_one(settings: Settings, user: str | None, job_id: str) -> None:
    with Notifier.of(settings) as notifier:
        status = notifier.status(job_id, user)
    found = status.record if status is not None else None
    if found is None and user is None and (known := _user_of(settings, job_id)) is not None:
        _show_one(settings, known, job_id)  # with its user known, the record tells more
        return
    if found is None:
        complain(f"{job_id}: no record" + ("" if user is None else f" of {user}"))
        answer({"job_id": job_id, "state": "unknown"}, right=False)
        return
    lines = [] if GIVEN.json else [*record_lines(found)]
    lines += [f"settled by {found.worker}" + (f", rates {found.rates}" if found.rates else "")] if found.worker else []
    ended = f"{found.user}, {found.category}: {found.outcome or 'it has not ended'}"
    answer(record_json(found), ended, *lines)


def _user_of(settings: Settings, job_id: str) -> str | None:
    with ProgressBar("all users") as bar:
        each = (search_user(at.client, job_id, settings.history.keep_us, bar.move) for at in each_opened(settings))
        return next((user for user in each if user is not None), None)


def _row(record: Record) -> tuple[object, ...]:
    """A row whose long cell has a line for each entry, so that the table fits 80 columns."""
    held = [f"{seconds_text(seconds)} {what}" for what, seconds in record.totals().items()]
    why = record.reason or record.superseded_by
    ended = [f"{record.outcome} ({why})" if why else record.outcome, *map(str, record.replies)]
    return (record.accepted_at or record.ended_at, record.category, "\n".join([*held, *ended]), record.job_id)
