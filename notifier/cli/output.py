"""What every command prints with: one table or one JSON value on standard output, what went wrong on the other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any, Final, Self

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from notifier.units import parse_duration

EXIT_STATUSES: Final = (
    "Exit status: 0 done; 1 the command ran, and something is not right; 2 wrong usage; "
    "3 the configuration cannot be used; 4 Redis cannot be used; 130 interrupted."
)


SHOWN_AFTER_S: Final = 1.0  # what is over by then shows no bar


class Status(IntEnum):
    """How a command ends."""

    DONE = 0
    NOT_RIGHT = 1  # a line was refused, a problem was found, what was asked for is not there
    USAGE = 2
    CONFIGURATION = 3
    REDIS = 4
    INTERRUPTED = 130


ShardOption = Annotated[str | None, typer.Option("--shard", help="only this one of redis.shards")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


def print_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_as_text) + "\n")


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """A table; `empty` in its place where there are no rows."""
    console = Console(highlight=False)
    if not rows:
        console.print(empty, markup=False)
        return
    table = Table(
        *(Column(name, overflow="fold") for name in columns),
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))  # as it is: a user's name may look like markup
    console.print(table)


def counted(number: int, one: str, more: str = "") -> str:
    """A number with what it counts: '1 user', '2,000 users'. more: where it is not `one` and an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def say(text: str) -> None:
    """A line of the answer itself."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def complain(text: str) -> None:
    """A line about what is not right, beside the answer."""
    sys.stderr.write(text + "\n")


class ProgressBar:
    """A bar on standard error where that is a terminal, once it has taken a while; a context manager."""

    def __init__(self, what: str, total: float | None = None) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self._console = Console(stderr=True)
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
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
        """So much more is done."""
        self._bar.advance(self._task, more)
        self._show()

    def _show(self) -> None:
        late = time.monotonic() - self._since > SHOWN_AFTER_S
        if late and self._console.is_terminal and not self._bar.live.is_started:
            self._bar.start()


def duration_us(text: str, name: str, **bounds: int) -> int:
    """The µs in what was given for the option of this name; `least_us` and `max_us` bound it."""
    try:
        return parse_duration(text, **bounds)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def moment(at: datetime | None) -> str:
    """A moment in the local zone: today's to the millisecond, another day's to the second."""
    if at is None:
        return ""
    local, today = at.astimezone(), datetime.now().astimezone().date()
    if local.date() == today:
        return local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"
    return local.strftime("%b %d %H:%M:%S" if local.year == today.year else "%Y-%m-%d %H:%M")


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return moment(value)
    return "" if value is None else str(value)


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
