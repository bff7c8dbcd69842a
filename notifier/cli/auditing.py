"""The command that audits."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from notifier.audit import Audit
from notifier.cli.output import JsonOption, ProgressBar, Status, counted, print_json, say
from notifier.connection import connect
from notifier.settings import load_settings


def audit(
    context: typer.Context,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="put right what can be, losing and doubling nothing")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Hold all that Redis keeps against itself, while the workers work; status 1 where something is not right.

    With --repair: where something was left. With --json: a line for each finding, and one with the counts.
    """
    settings = load_settings(context.obj)
    found = left = 0
    with closing(connect(settings)) as redis, ProgressBar("audit") as bar:
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
            print_json(asdict(finding) | {"left": finding.left}) if json else say(str(finding))
    if json:
        print_json({"jobs": work.jobs, "users": work.users, "found": found, "left": left})
    else:
        say(f"{counted(work.jobs, 'job')}, {counted(work.users, 'user')}: {_verdict(found, left, repair=repair)}")
    if left:
        raise typer.Exit(Status.NOT_RIGHT)


def _verdict(found: int, left: int, *, repair: bool) -> str:
    if not found:
        return "all right"
    if not repair:
        return f"{found:,} not right; --repair puts right what can be"
    return f"{found - left:,} put right" + (f", {left:,} left" if left else "")
