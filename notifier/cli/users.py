"""Commands for what users chose: users get, mute, unmute, clear, export, apply, log, forget."""

from __future__ import annotations

import json as codec
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from notifier.cli.cancel import tell
from notifier.cli.chosen import chosen_lines
from notifier.cli.options import JsonOption, YesOption, duration_us, notifier_of
from notifier.cli.output import Rows, answer, complain, confirm, fail, print_json, say
from notifier.errors import InvalidPreferenceError
from notifier.notification.json_values import read_object
from notifier.operations.action_log import OF_USERS, read_actions
from notifier.operations.export import export_user
from notifier.operations.history import record_json
from notifier.producer.notifier import Notifier
from notifier.rules.preferences import Preferences, What
from notifier.settings import load_settings
from notifier.store.partitions import opened, opened_all
from notifier.units import without_controls

WHO: Final = "notifier users"  # for the log of changes
ALL: Final = 20_000  # more changes than the log keeps
User = Annotated[str, typer.Argument(help="the user", show_default=False)]
Categories = Annotated[list[str] | None, typer.Option("--category", help="only of this category; may be repeated")]

commands = typer.Typer(help="What users chose for themselves.", no_args_is_help=True)


@commands.command()
def get(context: typer.Context, user: User, *, json: JsonOption = False) -> None:
    """Show what a user chose."""
    with notifier_of(context) as notifier:
        _show(notifier.users.get(user), json=json)


@commands.command()
def mute(
    context: typer.Context,
    user: User,
    *,
    lasting: Annotated[str | None, typer.Option("--for", help="how long, such as 1h  [default: without end]")] = None,
    category: Categories = None,
    what: Annotated[str, typer.Option(help="hold or drop")] = "hold",
    json: JsonOption = False,
) -> None:
    """Send nothing to a user for a time."""
    ends = None if lasting is None else timedelta(microseconds=duration_us(lasting, "--for"))
    how: What = what  # type: ignore[assignment]  # checked by Users.mute, with the field's name
    with notifier_of(context) as notifier:
        _show(notifier.users.mute(user, until=ends, categories=category or None, what=how, who=WHO), json=json)


@commands.command()
def unmute(context: typer.Context, user: User, *, category: Categories = None, json: JsonOption = False) -> None:
    """Take mutes of a user back."""
    with notifier_of(context) as notifier:
        _show(notifier.users.unmute(user, categories=category or None, who=WHO), json=json)


@commands.command()
def clear(context: typer.Context, user: User) -> None:
    """Forget what a user chose: the configuration alone holds."""
    with notifier_of(context) as notifier:
        notifier.users.clear(user, who=WHO)
    say("cleared")


@commands.command()
def export(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="all that is kept of this user instead, as JSON")] = None,
) -> None:
    """Print what all users chose, a JSON object a line, as `apply` reads it. With --user: all that is kept of one."""
    with notifier_of(context) as notifier:
        if user is not None:
            print_json(_kept(context, notifier, user))
            return
        for entry in notifier.users.export():
            print_json(entry)


@commands.command()
def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="a JSON object a line, as `export` prints them")],
) -> None:
    """Let each user of a file have exactly what its line says. Exit status 1 if a line is refused; others are applied.

    It ends at a line that is no JSON object.
    """
    if not file.exists():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    with notifier_of(context) as notifier, file.open(encoding="utf-8-sig") as lines:
        number = applied = 0
        try:
            for number, entry in entries_in(lines):
                try:
                    applied += notifier.users.apply([entry], who=WHO)
                except InvalidPreferenceError as error:  # users may no more, say, what they chose then
                    complain(f"{file}:{number}: {str(error).removeprefix('entries[0].')}")
        except ValueError as error:
            fail(f"{file}:{number + 1}: {error}")
    answer({"applied": applied}, f"{applied} applied", json=False, right=applied == number)


@commands.command()
def log(
    context: typer.Context,
    user: Annotated[str | None, typer.Argument(help="only of this user", show_default=False)] = None,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="show at most this many")] = 50,
    json: JsonOption = False,
) -> None:
    """Show who changed what users chose, the last first."""
    settings, wanted = load_settings(context.obj), ALL if user else limit
    with opened_all(settings) as partitions:
        found = [a for a in read_actions(partitions, wanted, OF_USERS) if user in {None, a.of}][:limit]
    rows = [(a.at, a.who or "the user", a.of, _chosen(a.answer)) for a in found]
    told = [{"at": a.at, "who": a.who, "user": a.of, "chosen": a.answer} for a in found]
    answer(told, Rows(("at", "by", "user", "chosen"), rows, empty="nothing was changed"), json=json)


@commands.command()
def forget(
    context: typer.Context,
    user: User,
    *,
    hard: Annotated[bool, typer.Option("--hard", help="also when something was sent: the limits begin anew")] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Cancel what waits for a user, and delete all that is kept. Exit status 1 if a worker has some of it."""
    confirm(f"cancel what waits for {without_controls(user)}, and delete all that is kept?", yes=yes)
    with notifier_of(context) as notifier:
        tell(notifier.forget(user, hard=hard), json=json, first="forgotten; ")


def _kept(context: typer.Context, notifier: Notifier, user: str) -> dict[str, Any]:
    with opened(load_settings(context.obj), user) as redis:
        kept = export_user(redis, notifier.policies, user)
        changed = [{"at": a.at, "who": a.who} for a in read_actions(redis, ALL, OF_USERS) if a.of == user]
    chosen = notifier.users.get(user).as_dict()
    history = [record_json(record) for record in notifier.history(user)]
    return {"user": user, "chosen": chosen, "changes": changed, **kept, "history": history}


def _show(chosen: Preferences, *, json: bool) -> None:
    told = chosen.as_dict()
    answer(told, *(chosen_lines(told, after=datetime.now(UTC)) or ["nothing is chosen"]), json=json)


def _chosen(answer: str) -> str:
    return "\n".join(chosen_lines(codec.loads(answer))) if answer else "cleared"


def entries_in(lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The entries of a file that `export` printed, and their lines. Raises ValueError for what is none."""
    for number, line in enumerate(lines, 1):
        entry = read_object(line)
        if entry is None:
            raise ValueError("is not a JSON object")
        yield number, entry
