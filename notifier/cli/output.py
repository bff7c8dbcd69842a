"""Print for every command: one table or one JSON value on standard output, errors on standard error."""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, Self

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from notifier.cli.given import GIVEN
from notifier.operations.action_log import Log, record_action
from notifier.texts import without_controls

EXIT_STATUSES: Final = (
    "Exit status: 0 done; 1 the command ran, and something is not right; 2 wrong usage; "
    "3 the configuration cannot be used; 4 Redis cannot be used; 130 interrupted."
)
NOT_RIGHT: Final = 1  # a line was refused, a problem was found, a job or record was not found
USAGE: Final = 2
SHOWN_AFTER_S: Final = 1.0  # a shorter command shows no bar


class Rows(NamedTuple):
    """A table. empty: the line to print instead if there are no rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    empty: str = ""


def answer(value: Any, *shown: str | Rows, right: bool = True) -> None:
    """Print a command's answer: `value` as JSON, or lines and tables for people. Exit status 1 unless `right`."""
    if GIVEN.json:
        print_json(value)
    else:
        for each in shown:
            say(each) if isinstance(each, str) else _print_rows(*each)
    if not right:
        raise typer.Exit(NOT_RIGHT)


def fail(text: str, status: int = NOT_RIGHT) -> NoReturn:
    """Print an error, and exit with this status."""
    complain(text)
    raise typer.Exit(status)


def print_json(value: Any) -> None:
    knows_all_letters = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    written = json.dumps(value, ensure_ascii=not knows_all_letters, default=_as_text)
    sys.stdout.write(without_controls(written) + "\n")


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str, empty: str) -> None:
    """Print a table. No word is broken, so that people can copy an id."""
    if not rows:
        say(empty)
        return
    console = Console(highlight=False)
    texts = [[without_controls(_cell(value)) for value in row] for row in rows]
    table = Table(
        *_columns([*zip(columns, *texts, strict=True)], console.width),
        title=Text(without_controls(title), "table.title") or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for row in texts:
        table.add_row(*map(Text, row))  # no markup: a user's name may look like it
    console.print(table, crop=False)


def _columns(texts: Sequence[Sequence[str]], width: int) -> Iterator[Column]:
    """Return the columns of a table of this width. texts: the name and the cells of each column.

    If the longest words fit, a column that cannot shrink says so: else rich would shrink it instead of the others.
    """
    longest = [max(map(cell_len, " ".join(each).split()), default=0) for each in texts]
    fits = sum(longest) + 2 * len(longest) <= width
    for (name, *cells), least in zip(texts, longest, strict=True):
        yield Column(name, min_width=least, no_wrap=fits and max(map(cell_len, [name, *cells])) <= least)


def say(text: str) -> None:
    """Print a line of the answer."""
    Console(highlight=False, soft_wrap=True, emoji=False).print(without_controls(text), markup=False)


def complain(text: str) -> None:
    """Print an error or a warning on standard error."""
    sys.stderr.write(without_controls(text) + "\n")


def say_before(text: str, *, asks: bool = True) -> None:
    """Print a line before `confirm`. With --json it goes to standard error, and only if `confirm` will ask."""
    if not GIVEN.json:
        say(text)
    elif asks and not GIVEN.yes:
        complain(text)


def confirm(question: str) -> None:
    """Ask on standard error, unless --yes was given; raise typer.Exit if the answer is no or there is no terminal."""
    if GIVEN.yes:
        return
    if not sys.stdin.isatty():
        fail("there is no terminal to ask at; give --yes", USAGE)
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise typer.Exit(NOT_RIGHT)


def who() -> str:
    """Return who runs the command, for the log of actions: --who, or the login."""
    if GIVEN.who:
        return GIVEN.who
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return "somebody"


def log_of(redis: Any) -> Log:
    """Return the function that logs the actions of this person."""
    return partial(record_action, redis, who(), "")


class ProgressBar:
    """A bar on standard error, if that is a terminal, after SHOWN_AFTER_S; a context manager."""

    def __init__(self, what: str, total: float | None = None) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self._console = Console(stderr=True)
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # else an answer for a file goes to the terminal
        )
        self._task = self._bar.add_task(what, total=total)
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def move(self, done: float, of: float | None = None) -> None:
        """Set the work done. of: the total, if it was not known before."""
        self._bar.update(self._task, completed=done, total=of)
        self._show()

    def advance(self, more: float) -> None:
        self._bar.advance(self._task, more)
        self._show()

    def _show(self) -> None:
        late = time.monotonic() - self._since > SHOWN_AFTER_S
        if late and self._console.is_terminal and not self._bar.live.is_started:
            self._bar.start()


def moment(at: datetime | None) -> str:
    """Write a time in the local zone: of today with milliseconds, of another day with seconds."""
    if at is None:
        return ""
    local, today = at.astimezone(), datetime.now().astimezone().date()
    if local.date() == today:
        return local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"
    return local.strftime("%b %d %H:%M:%S" if local.year == today.year else "%Y-%m-%d %H:%M:%S")


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return moment(value)
    return "" if value is None else str(value)


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
