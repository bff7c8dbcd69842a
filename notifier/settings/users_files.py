"""Users with rules of their own in CSV files beside the configuration, for tens of thousands of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from notifier.errors import SettingsError
from notifier.settings.checks import check_user
from notifier.settings.errors import line_of, message
from notifier.settings.schema_rules import CELLS, UserSettings
from notifier.settings.yaml_source import YamlError, decode
from notifier.units import shown

COLUMNS: Final = ("user", "tier", *CELLS)
COLUMNS_FORM: Final = f"the first line must name the columns: user, and any of {', '.join(COLUMNS[1:])}"
MAX_BYTES: Final = 50_000_000
MAX_PROBLEMS: Final = 50

Entry: TypeAlias = str | UserSettings  # the name of a tier, or rules
Written: TypeAlias = str | Mapping[str, Any]  # the same as it would stand under `users` in the configuration
Wrong: TypeAlias = str  # what is wrong in a line


@dataclass(slots=True)
class UsersFiles:
    """The users in some files. places: where each stands, as `users.csv:2`."""

    entries: dict[str, Entry] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def files_at(place: Path) -> list[Path]:
    """The file at a place, or the .csv files of the folder there, by name. Empty where there is none.

    A name that begins with a dot is a side file of an editor, or of a system that copies.
    """
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.suffix.lower() == ".csv" and path.name[0] != ".")
    return [place] if place.is_file() else []


def read_users(place: Path, tiers: Collection[str], users: Collection[str], at: str) -> UsersFiles:
    """Read the files at a place. tiers: those there are. users: who has an entry in the configuration itself.

    at: where the configuration names the place, for errors.

    Raises SettingsError with a line for each problem: file, line, what is wrong; two entries for one user are one.
    """
    paths = files_at(place)
    if not paths:
        raise SettingsError(f"{at}{place} is neither a file nor a folder with .csv files")
    found, problems, left = UsersFiles(), [], MAX_BYTES
    for path in paths:
        raw = _read(path, left, at)
        left -= len(raw)
        text = _decoded(raw, path)
        name = path.relative_to(place.parent)
        for line, user, entry in _rows(text, tiers):
            before = found.places.get(user) or ("users" if user in users else "")
            if isinstance(entry, str):
                problems.append(f"{path}:{line}: {entry}")
            elif before:
                problems.append(f"{path}:{line}: {user!r} has an entry in {before} already; keep one")
            else:
                found.places[user] = f"{name}:{line}"
                found.entries[user], found.written[user] = entry
    if problems:
        more = [f"{place}: and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        raise SettingsError("\n".join(problems[:MAX_PROBLEMS] + more))
    return found


def _read(path: Path, most: int, at: str) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise SettingsError(f"{at}cannot read {path}: {error.strerror}") from None
    if len(raw) > most:
        megabytes = MAX_BYTES // 1_000_000
        raise SettingsError(f"{path}: with it users_from has more than {megabytes} MB; so many users are a mistake")
    return raw


def _decoded(raw: bytes, path: Path) -> str:
    try:
        return decode(raw, MAX_BYTES)
    except YamlError as error:
        raise SettingsError(line_of(str(path), error.problem)) from None


def _rows(text: str, tiers: Collection[str]) -> Iterator[tuple[int, str, tuple[Entry, Written] | Wrong]]:
    """Line, user and entry of each row below the first, which names the columns."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    entries: dict[tuple[str, ...], tuple[Entry, Written] | Wrong] = {}  # there are few rules and many users
    columns: list[str] = []
    try:
        for cells in reader:
            if not columns:
                columns = [cell.strip() for cell in cells]
                if wrong := _of_columns(columns):
                    yield 1, "", wrong
                    return
                place = columns.index("user")
                names = [name for name in columns if name != "user"]
            elif cells and len(cells) != len(columns):
                yield reader.line_num, "", f"has {len(cells)} cells; {len(columns)} columns are named"
            elif cells:
                user = cells.pop(place).strip()
                rules = tuple(cells)
                if rules not in entries:
                    entries[rules] = _entry(dict(zip(names, rules, strict=True)), tiers)
                yield reader.line_num, user, _of_user(user) or entries[rules]
    except csv.Error as error:
        yield reader.line_num, "", f"is not CSV: {error}"
    else:
        if not columns:
            yield 1, "", f"is empty; {COLUMNS_FORM}"


def _of_columns(columns: Sequence[str]) -> Wrong | None:
    odd = [name for name in columns if name not in COLUMNS or columns.count(name) > 1]
    if not odd and "user" in columns:
        return None
    return f"{shown(odd[0])} is no column, or named twice; {COLUMNS_FORM}" if odd else COLUMNS_FORM


def _of_user(user: str) -> Wrong | None:
    try:
        check_user(user)
    except ValueError as error:
        return f"{user[:20]!r} {error}"
    return None


def _entry(cells: Mapping[str, str], tiers: Collection[str]) -> tuple[Entry, Written] | Wrong:
    given = {name: text for name, cell in cells.items() if (text := cell.strip())}
    tier = given.pop("tier", "")
    if tier and given:
        return f"names the tier {tier!r} and has rules of its own; keep one"
    if tier:
        if tier not in tiers:
            return f"unknown tier {tier[:40]!r}; tiers are {', '.join(sorted(tiers))}"
        return tier, tier
    written: dict[str, Any] = {}
    for name, text in given.items():
        try:
            written[name] = CELLS[name](text)
        except ValueError as error:
            return f"{name}: {error}"
    try:
        return UserSettings.model_validate(written), written
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        return f"{details['loc'][0]}: {message(details, (), UserSettings)}"
