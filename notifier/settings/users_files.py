"""Users with rules of their own, even tens of thousands, in files beside the configuration: a JSON object a line."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from notifier.errors import SettingsError
from notifier.notification.json_values import read_object
from notifier.settings.checks import check_user, kind
from notifier.settings.errors import line_of, message
from notifier.settings.schema_rules import UserSettings
from notifier.settings.yaml_source import Problem, YamlError, decode

SUCH_AS: Final = 'such as {"user": "44", "tier": "quiet"} or {"user": "45", "gap": "10s"}'
MAX_BYTES: Final = 50_000_000
MAX_PROBLEMS: Final = 50

Entry: TypeAlias = str | UserSettings  # the name of a tier, or rules
Written: TypeAlias = str | Mapping[str, Any]  # the entry as people write it under `users`


@dataclass(slots=True)
class UsersFiles:
    """The users in some files. places: the place of each, such as `users.jsonl:2`."""

    entries: dict[str, Entry] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def files_at(place: Path) -> list[Path]:
    """Return the file at a place, or the .jsonl files of the folder there, sorted by name; [] if there is none.

    Names that begin with a dot are left out: editors and copying tools write such files.
    """
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.suffix.lower() == ".jsonl" and path.name[0] != ".")
    return [place] if place.is_file() else []


def read_users(place: Path, tiers: Collection[str], users: Collection[str], at: str) -> UsersFiles:
    """Read the files at a place. tiers: the known ones. users: those with an entry in the configuration itself.

    at: where the configuration names the place, for errors.

    Raise SettingsError with a line for each problem: file, line, what is wrong. A second entry for a user is a problem.
    """
    paths = files_at(place)
    if not paths:
        raise SettingsError(f"{at}{place} is neither a file nor a folder with .jsonl files")
    found, problems, left = UsersFiles(), [], MAX_BYTES
    for path in paths:
        raw = _read(path, left, at)
        left -= len(raw)
        text = _decoded(raw, path)
        name = path.relative_to(place.parent)
        for line, user, entry in _entries(text, tiers):
            before = found.places.get(user) or ("users" if user in users else "")
            if isinstance(entry, Problem):
                problems.append(line_of(f"{path}:{line}", entry))
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
        raise SettingsError(f"{at}cannot read {path}: {error.strerror}") from error
    if len(raw) > most:
        megabytes = MAX_BYTES // 1_000_000
        raise SettingsError(f"{path}: with it users_from has more than {megabytes} MB; so many users are a mistake")
    return raw


def _decoded(raw: bytes, path: Path) -> str:
    try:
        return decode(raw, MAX_BYTES)
    except YamlError as error:
        raise SettingsError(line_of(str(path), error.problem)) from None


def _entries(text: str, tiers: Collection[str]) -> Iterator[tuple[int, str, tuple[Entry, Written] | Problem]]:
    """Yield number, user and entry of each line that is not blank. An empty file is refused: it may be half written."""
    entries: dict[str, tuple[Entry, Written] | Problem] = {}  # by their text: many users have the same rules
    if not text.strip():
        yield 1, "", Problem(None, (), f"is empty; write a JSON object {SUCH_AS}")
    for number, line in enumerate(io.StringIO(text), 1):
        if not line.strip():
            continue
        if (given := read_object(line)) is None:
            yield number, "", Problem(None, (), f"is no JSON object; write one {SUCH_AS}")
            continue
        if not isinstance(user := given.pop("user", None), str):
            yield number, "", _no_user(user)
            continue
        if (rules := repr(given)) not in entries:
            entries[rules] = _entry(given, tiers)
        yield number, user, _of_user(user) or entries[rules]


def _no_user(given: object) -> Problem:
    if given is None:
        return Problem(None, (), f"names no user; write a JSON object {SUCH_AS}")
    such_as = f' such as "{given}"' if type(given) is int else ""
    return Problem(None, ("user",), f"must be text{such_as}, is {kind(given)}")


def _of_user(user: str) -> Problem | None:
    try:
        check_user(user)
    except ValueError as error:
        return Problem(None, ("user",), f"{user[:20]!r} {error}")
    return None


def _entry(given: Mapping[str, Any], tiers: Collection[str]) -> tuple[Entry, Written] | Problem:
    tier = given.get("tier")
    if tier is None and "tier" in given:
        return Problem(None, ("tier",), "is empty; give a value, or delete the key")
    if tier is not None and len(given) > 1:
        return Problem(None, ("tier",), f"names {str(tier)[:40]!r} beside rules of its own; keep one")
    if isinstance(tier, str) and tier in tiers:
        return tier, tier
    if tier is not None:
        return Problem(None, ("tier",), f"unknown tier {str(tier)[:40]!r}; tiers are {', '.join(sorted(tiers))}")
    try:
        return UserSettings.model_validate(given), given
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        return Problem(None, details["loc"], message(details, details["loc"], UserSettings))
