"""The command `audit`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from notifier.cli.given import GIVEN
from notifier.cli.output import ProgressBar, answer, print_json, say
from notifier.operations.audit.audit import Audit
from notifier.settings import load_settings
from notifier.store.partitions import each_opened
from notifier.units import counted


def audit(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="repair the problems; nothing is lost or sent twice")
    ] = False,
) -> None:
    """Check Redis for inconsistent or orphaned entries, while the workers work. Exit status 1 if there is one.

    With --repair, exit status 1 if one is left. With --json, a line for each problem, and one with the counts.
    """
    settings = load_settings(GIVEN.config)
    found = left = jobs = users = 0
    for at in each_opened(settings):
        with ProgressBar("audit") as bar:
            work = Audit(at.client, lease_us=settings.worker.lease_us, repair=repair, on_progress=bar.move)
            for finding in work.findings():
                found += 1
                left += finding.left
                print_json(asdict(finding) | {"left": finding.left}) if GIVEN.json else say(str(finding))
        jobs, users = jobs + work.jobs, users + work.users
    counts = f"{counted(jobs, 'job')}, {counted(users, 'user')}: {_verdict(found, left, repair=repair)}"
    answer({"jobs": jobs, "users": users, "found": found, "left": left}, counts, right=not left)


def _verdict(found: int, left: int, *, repair: bool) -> str:
    if not found:
        return "all right"
    if not repair:
        return f"{counted(found, 'problem')}; --repair repairs them as far as possible"
    return f"{found - left:,} repaired" + (f", {left:,} left" if left else "")
