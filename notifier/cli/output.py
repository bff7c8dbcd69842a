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
NOT_RIGHT: Final = 1  # a line was refused, a problem was found, what was asked for is not there
USAGE: Final = 2
SHOWN_AFTER_S: Final = 1.0  # what is over by then shows no bar


class Rows(NamedTuple):
    """A table. empty: a line in its place where it has no rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    empty: str = ""


def answer(value: Any, *told: str | Rows, right: bool = True) -> None:
    """Print a command's answer: a JSON value, or lines and tables for people. Exit status 1 where it is not right."""
    if GIVEN.json:
        print_json(value)
    else:
        for each in told:
            say(each) if isinstance(each, str) else _print_rows(*each)
    if not right:
        raise typer.Exit(NOT_RIGHT)


def fail(text: str, status: int = NOT_RIGHT) -> NoReturn:
    """End the command: say what is wrong, and exit with this status."""
    complain(text)
    raise typer.Exit(status)


def print_json(value: Any) -> None:
    knows_all_letters = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    written = json.dumps(value, ensure_ascii=not knows_all_letters, default=_as_text)
    sys.stdout.write(without_controls(written) + "\n")


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str, empty: str) -> None:
    """A table. No word of it is broken: an id may be copied from it."""
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
        table.add_row(*map(Text, row))  # as it is: a user's name may look like markup
    console.print(table, crop=False)


def _columns(texts: Sequence[Sequence[str]], width: int) -> Iterator[Column]:
    """Return the columns, each by its name and its cells; of a table so wide, if its longest words leave it so.

    A column that has no room to give says so then: else it is asked in place of those that have.
    """
    longest = [max(map(cell_len, " ".join(each).split()), default=0) for each in texts]
    fits = sum(longest) + 2 * len(longest) <= width
    for (name, *cells), least in zip(texts, longest, strict=True):
        yield Column(name, min_width=least, no_wrap=fits and max(map(cell_len, [name, *cells])) <= least)


def say(text: str) -> None:
    """A line of the answer itself."""
    Console(highlight=False, soft_wrap=True, emoji=False).print(without_controls(text), markup=False)


def complain(text: str) -> None:
    """A line about what is not right, beside the answer."""
    sys.stderr.write(without_controls(text) + "\n")


def say_before(text: str, *, asks: bool = True) -> None:
    """A line of what `confirm` then asks about, if it asks; it has no place in JSON."""
    if not GIVEN.json:
        say(text)
    elif asks and not GIVEN.yes:
        complain(text)


def confirm(question: str) -> None:
    """Ask on standard error, unless --yes was given; raise typer.Exit where the answer is no, or nobody answers."""
    if GIVEN.yes:
        return
    if not sys.stdin.isatty():
        fail("there is no terminal to ask at; give --yes", USAGE)
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise typer.Exit(NOT_RIGHT)


def who() -> str:
    """Return who runs the command, for the log of actions: as it was given, or by the login."""
    if GIVEN.who:
        return GIVEN.who
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return "somebody"


def log_of(redis: Any) -> Log:
    """Return what writes down that this person did something."""
    return partial(record_action, redis, who(), "")


class ProgressBar:
    """A bar on standard error where that is a terminal, once it has taken a while; a context manager."""

    def __init__(self, what: str, total: float | None = None) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self._console = Console(stderr=True)
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # an answer that goes to a file stays there
        )
        self._task = self._bar.add_task(what, total=total)
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def move(self, done: float, of: float | None = None) -> None:
        """So much is done, of so much where that is known only now."""
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
    """A moment in the local zone: today's to the millisecond, another day's to the second."""
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
