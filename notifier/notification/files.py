"""Files of notifications: JSON lines or CSV, one notification a line. No file is read into memory as a whole."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import IO, Any, Final, Literal

from notifier.errors import InvalidNotificationError
from notifier.notification.json_values import read_object
from notifier.notification.notification import MAPPINGS, Notification, unknown_field
from notifier.texts import meant

Format = Literal["jsonl", "csv"]
Line = tuple[int, dict[str, Any] | str, str, str]  # number, fields or the problem with it, text, header

# The columns of a CSV: DEVICE, fields of `Notification`, and `data.<key>`.
DEVICE: Final = ("platform", "token")
FIELDS: Final = Notification.__dataclass_fields__.keys()
CELLS: Final[Mapping[str, Callable[[str], Any]]] = {"expires_in": float, "badge": int, "tags": str.split}
COLUMNS: Final = (FIELDS - {"devices", *MAPPINGS}) | set(DEVICE)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file: its number (the first is 1), and a notification or the problem with it.

    raw: its text. header: the line of a CSV that names the columns. If that line itself is wrong, both are ''.
    """

    number: int
    notification: Notification | None
    problem: str = ""
    raw: str = ""
    header: str = ""


def read_rows(file: IO[str], form: Format) -> Iterator[Row]:
    """Read the rows of a file, without empty lines. The first line of a CSV names the columns and is row 1."""
    lines = _json_lines(file) if form == "jsonl" else _csv_lines(file)
    for number, fields, raw, header in lines:
        if isinstance(fields, str):
            yield Row(number, None, fields, raw, header)
            continue
        try:
            yield Row(number, notification_of(fields), "", raw, header)
        except InvalidNotificationError as error:
            yield Row(number, None, str(error), raw, header)


def _json_lines(file: IO[str]) -> Iterator[Line]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        fields = read_object(line)
        yield number, "is not a JSON object" if fields is None else fields, line, ""


def _csv_lines(file: IO[str]) -> Iterator[Line]:
    read: list[str] = []  # the lines of the current row: a cell may contain line breaks

    def lines() -> Iterator[str]:
        for line in file:
            read.append(line)
            yield line

    reader = csv.reader(lines(), strict=True)
    columns: list[str] = []
    header = ""
    while True:
        read.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield reader.line_num, f"is not CSV: {error}", "".join(read), header
            continue
        if cells is None:
            return
        if not columns:
            columns, header = [cell.strip() for cell in cells], csv_line(cells)
            if problem := _why_not_columns(columns):
                yield reader.line_num, problem, "", ""
                return
        elif cells and len(cells) != len(columns):
            problem = f"has {len(cells)} cells; the first line names {len(columns)} columns"
            yield reader.line_num, problem, csv_line(cells), header
        elif cells:
            yield reader.line_num, _from_cells(dict(zip(columns, cells, strict=True))), csv_line(cells), header


def csv_line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _why_not_columns(columns: Sequence[str]) -> str:
    for place, name in enumerate(columns):
        if not name:
            continue  # spreadsheets add empty columns; a row with a value in one is refused
        if name in columns[:place]:
            return f"{name}: names two columns; keep one"
        if name not in COLUMNS and not name.startswith("data."):
            return f"{name[:40]}: is not a column; {meant(name, [*sorted(COLUMNS), 'data.…'])}"
    return ""


def _from_cells(cells: Mapping[str, str]) -> dict[str, Any] | str:
    given = {name: cell for name, cell in cells.items() if cell != ""}
    data: dict[str, Any] = {}
    fields: dict[str, Any] = {"devices": [{name: given.pop(name, "") for name in DEVICE}], "data": data}
    for name, cell in given.items():
        try:
            value = CELLS.get(name, str)(cell)
        except ValueError:
            return f"{name}: {cell[:20]!r} is not a number"
        if name.startswith("data."):
            data[name.removeprefix("data.")] = value
        else:
            fields[name] = value
    return fields


def notification_of(fields: dict[str, Any]) -> Notification:
    """Make a notification from the fields of a JSON object. Raises InvalidNotificationError."""
    if unknown := fields.keys() - FIELDS:
        raise InvalidNotificationError(min(unknown), unknown_field(min(unknown), FIELDS))
    steering = {name: fields.pop(name) for name in ("send_at", "dedupe_key", "expires_in") if name in fields}
    if isinstance(steering.get("send_at"), str):
        try:
            steering["send_at"] = datetime.fromisoformat(steering["send_at"])
        except ValueError:
            raise InvalidNotificationError("send_at", "is not a time such as 2026-11-21T08:00:00+01:00") from None
    notification = replace(Notification.from_kwargs(fields), **steering)
    notification.validate()
    return notification
