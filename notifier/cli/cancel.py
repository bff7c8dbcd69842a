"""The command `cancel`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from notifier.cli.output import JsonOption, Status, print_json, say
from notifier.producer.cancel import Cancellation
from notifier.producer.notifier import Notifier


def cancel(
    context: typer.Context,
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="the ids that send printed")] = None,
    *,
    user: Annotated[str | None, typer.Option(help="in place of ids: all that waits for this user …")] = None,
    category: Annotated[str | None, typer.Option(help="… and is of this category …")] = None,
    collapse_id: Annotated[str | None, typer.Option(help="… and has this collapse id …")] = None,
    tag: Annotated[str | None, typer.Option(help="… and has this tag")] = None,
    json: JsonOption = False,
) -> None:
    """Cancel notifications that no worker has taken yet. Exit status 1 if it is too late for one."""
    ids = job_ids or []
    if bool(ids) == (user is not None) or (ids and not category is collapse_id is tag is None):
        raise typer.BadParameter("give job ids, or --user and what else is to match; not both")
    with Notifier.from_config(context.obj, follow=False) as notifier:
        if user is not None:
            tell(notifier.cancel(user=user, category=category, collapse_id=collapse_id, tag=tag), json=json)
        elif len(ids) > 1:
            tell(notifier.cancel_many(ids), json=json)
        else:
            _tell_of_one(ids[0], notifier.cancel(ids[0]), json=json)


def tell(done: Cancellation, *, json: bool) -> None:
    """Print what was cancelled. Exit status 1 if it is too late for one, or one is unknown."""
    if json:
        print_json(asdict(done))
    else:
        say(f"{done.cancelled} cancelled")
        for job_id in done.too_late:
            say(f"{job_id}: too late")
        for job_id in done.unknown:
            say(f"{job_id}: unknown")
    if done.too_late or done.unknown:
        raise typer.Exit(Status.NOT_RIGHT)


def _tell_of_one(job_id: str, answer: str, *, json: bool) -> None:
    if json:
        print_json({"job_id": job_id, "answer": answer})
    else:
        say(answer)
    if answer != "cancelled":
        raise typer.Exit(Status.NOT_RIGHT)
