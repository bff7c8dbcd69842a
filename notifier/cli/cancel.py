"""The command `cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from notifier.cli.given import GIVEN
from notifier.cli.options import settings_to_stop
from notifier.cli.output import ProgressBar, answer, confirm, log_of, say_before
from notifier.operations.action_log import logged
from notifier.producer.cancel import Cancellation
from notifier.producer.notifier import Notifier
from notifier.queue.walk import PAGE, Kind, Met, Walk, count
from notifier.store.exchange import Exchange, exchange, nothing
from notifier.store.partitions import each_opened, opened_all
from notifier.units import counted


def cancel(
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="the ids that send printed")] = None,
    *,
    user: Annotated[str | None, typer.Option(help="instead of ids: all that wait for this user")] = None,
    category: Annotated[str | None, typer.Option(help="only those of this category")] = None,
    collapse_id: Annotated[str | None, typer.Option(help="only those with this collapse id")] = None,
    tag: Annotated[str | None, typer.Option(help="only those with this tag")] = None,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="instead of --user: of all users; needs --category or --tag")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with --all-users: count them, and cancel none")] = False,
) -> None:
    """Cancel notifications that no worker has taken yet. Exit status 1 if it is too late for one.

    With --all-users the command first counts them, and asks.
    """
    ids = job_ids or []
    if all_users:
        if ids or user is not None or collapse_id is not None or category is tag is None:
            raise typer.BadParameter("--all-users goes with --category, --tag or both, and with nothing else")
        _cancel_of_all(category, tag, dry_run=dry_run)
        return
    if dry_run or GIVEN.yes:
        raise typer.BadParameter("--dry-run and --yes go with --all-users only: nothing was cancelled")
    if bool(ids) == (user is not None) or (ids and not category is collapse_id is tag is None):
        raise typer.BadParameter("give job ids, or --user and what else is to match; not both")
    settings, _ = settings_to_stop()
    with Notifier.of(settings) as notifier, opened_all(settings) as partitions:
        if user is not None:
            kind = Kind(category, collapse_id, tag)
            with logged(log_of(partitions), "cancel of user", f"{user} {kind}".rstrip()) as words:
                done = notifier.cancel(user=user, category=category, collapse_id=collapse_id, tag=tag)
                words.append(str(done))
            tell(done)
        elif len(ids) > 1:
            with logged(log_of(partitions), "cancel", ", ".join(ids)) as words:
                words.append(str(done := notifier.cancel_many(ids)))
            tell(done)
        else:
            with logged(log_of(partitions), "cancel", ids[0]) as words:
                words.append(result := notifier.cancel(ids[0]))
            answer({"job_id": ids[0], "answer": result}, result, right=result == "cancelled")


def _cancel_of_all(category: str | None, tag: str | None, *, dry_run: bool) -> None:
    settings, _ = settings_to_stop()
    kind = Kind(category, tag=tag)
    with Notifier.of(settings) as notifier:
        found, users = dict[str, None](), set[str]()
        for at in each_opened(settings):
            with ProgressBar("counting", exchange(at.client, count())) as bar:
                exchange(at.client, Walk(kind, partial(_note, found, users, bar)).of_everybody())
        all_of_them = f"{counted(len(found), 'notification')} of {counted(len(users), 'user')}"
        say_before(f"{all_of_them} would be cancelled: {kind}", asks=bool(found) and not dry_run)
        if dry_run or not found:
            answer({"found": len(found), "users": len(users), "cancelled": 0})
            return
        confirm("cancel?")
        with opened_all(settings) as partitions, logged(log_of(partitions), "cancel of all", str(kind)) as words:
            done = _cancel_in_pages(notifier, list(found), words)
    right = not (done.too_late or done.unknown)
    answer({"found": len(found), "users": len(users), **asdict(done)}, *words, right=right)


def _note(
    found: dict[str, None], users: set[str], bar: ProgressBar, met: Sequence[Met], looked_at: int
) -> Exchange[None]:
    found |= dict.fromkeys(each.job_id for each in met)
    users |= {each.user for each in met}
    bar.advance(looked_at)
    return nothing()


def _cancel_in_pages(notifier: Notifier, ids: list[str], words: list[str]) -> Cancellation:
    """Cancel these jobs. words: gets the counts so far after each page, for the log if the work is interrupted."""
    done = Cancellation()
    with ProgressBar("cancelling", len(ids)) as bar:
        for n in range(0, len(ids), PAGE):
            some = notifier.cancel_many(ids[n : n + PAGE])
            cancelled, unknown = done.cancelled + some.cancelled, done.unknown + some.unknown
            done = Cancellation(cancelled, done.too_late + some.too_late, unknown)
            more = f", {len(unknown):,} unknown" if unknown else ""
            words[:] = [f"{cancelled:,} cancelled, {len(done.too_late):,} too late{more}"]
            bar.move(n + PAGE)
    return done


def tell(done: Cancellation, first: str = "") -> None:
    """Print the result, after `first`. Exit status 1 if it is too late for one job, or if one is unknown."""
    late, unknown = (f"{each}: too late" for each in done.too_late), (f"{each}: unknown" for each in done.unknown)
    right = not (done.too_late or done.unknown)
    answer(asdict(done), f"{first}{done.cancelled} cancelled", *late, *unknown, right=right)
