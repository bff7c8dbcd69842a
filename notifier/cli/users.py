"""Commands for the data of users: users export, apply, forget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from notifier.cli.cancel import tell
from notifier.cli.given import GIVEN
from notifier.cli.options import settings_in_force
from notifier.cli.output import answer, complain, confirm, fail, print_json
from notifier.errors import InvalidPreferenceError
from notifier.notification.json_values import read_object
from notifier.operations.action_log import OF_USERS, read_actions
from notifier.operations.export import export_user
from notifier.operations.history import record_json
from notifier.producer.notifier import Notifier
from notifier.settings import load_settings
from notifier.store.partitions import opened
from notifier.texts import without_controls

WHO: Final = "notifier users"  # for the log of changes
ALL: Final = 20_000  # more changes than the log keeps


def export(
    user: Annotated[str | None, typer.Option(help="print all data of this user instead, as JSON")] = None,
) -> None:
    """Print the choices of all users, a JSON object on each line, for `apply`. With --user: all data of one user."""
    with Notifier.of(settings_in_force()) as notifier:
        if user is not None:
            print_json(_kept(notifier, user))
            return
        for entry in notifier.users.export():
            print_json(entry)


def apply(
    file: Annotated[Path, typer.Argument(help="the file, as `export` prints it: a JSON object on each line")],
) -> None:
    """Set the choices of each user in a file. Exit status 1 if a line is refused; the other lines are applied.

    Each of these users then has exactly the choices in the line. The command stops at a line that is not a JSON object.
    """
    if not file.exists():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    with Notifier.of(settings_in_force()) as notifier, file.open(encoding="utf-8-sig") as lines:
        number = applied = 0
        try:
            for number, entry in entries_in(lines):
                try:
                    applied += notifier.users.apply([entry], who=WHO)
                except InvalidPreferenceError as error:  # such as a choice that users may no longer make
                    complain(f"{file}:{number}: {str(error).removeprefix('entries[0].')}")
        except ValueError as error:
            fail(f"{file}:{number + 1}: {error}")
    answer({"applied": applied}, f"{applied} applied", right=applied == number)


def forget(
    user: Annotated[str, typer.Argument(help="the user", show_default=False)],
    *,
    hard: Annotated[bool, typer.Option("--hard", help="also delete the times of sends: the limits begin anew")] = False,
) -> None:
    """Cancel all that waits for a user, and delete all its data. Exit status 1 if a worker was sending some of it."""
    confirm(f"cancel what waits for {without_controls(user)}, and delete all that is kept?")
    with Notifier.of(settings_in_force()) as notifier:
        tell(notifier.forget(user, hard=hard), first="forgotten; ")


def _kept(notifier: Notifier, user: str) -> dict[str, Any]:
    with opened(load_settings(GIVEN.config), user) as redis:
        kept = export_user(redis, notifier.policies, user)
        changed = [
            {"at": a.at, "who": a.who, "chosen": read_object(a.answer)}
            for a in read_actions(redis, ALL, OF_USERS)
            if a.of == user
        ]
    chosen = notifier.users.get(user).as_dict()
    history = [record_json(record) for record in notifier.history(user)]
    return {"user": user, "chosen": chosen, "changes": changed, **kept, "history": history}


def entries_in(lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the entry of each line of an `export`. Raises ValueError if a line is no JSON object."""
    for number, line in enumerate(lines, 1):
        entry = read_object(line)
        if entry is None:
            raise ValueError("is not a JSON object")
        yield number, entry
