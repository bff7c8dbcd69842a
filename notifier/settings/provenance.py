"""Which line of the configuration each rule comes from. Follows the order of resolution that `Policies` states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from notifier.rules.category import DEFAULT_CATEGORY
from notifier.settings.schema_rules import UserSettings
from notifier.settings.yaml_source import Path as KeyPath
from notifier.settings.yaml_source import Source

if TYPE_CHECKING:
    from notifier.settings.schema import Settings


@dataclass(frozen=True, slots=True)
class Places:
    """Where rules stand, as `file:line`; an empty text for what is not in the file. path: of their section in it.

    windows: of each one. others: of the other rules, by their keys.
    """

    path: str
    windows: tuple[str, ...]
    others: Mapping[str, str]


class Provenance:
    """The places of the rules in one configuration, which must have been found right before."""

    def __init__(self, settings: Settings, source: Source, name: str) -> None:
        """source: where they stand in their file. name: the file; of rates that have no places, what to call them."""
        self._rates, self._in_files = settings.rates, settings.places_in_files
        self._source, self._name = source, name

    def of_user(self, user: str) -> Places:
        """Of the rules in force for a user."""
        entry = _get(self._rates, "users", user)
        own: KeyPath = ("tiers", entry) if isinstance(entry, str) else ("users", user) if entry is not None else ()
        named = ".".join(map(str, own)) or "user"
        if isinstance(entry, str):
            named = f"{self._in_files.get(user) or f'users.{user}'} → {named}"
        elif user in self._in_files:
            named = f"users_from, {user}"
        return self._places(named, own, ("user",))

    def of_category(self, category: str) -> Places:
        """Of the rules of a category, or of those of `default`, which it follows where it is not in the file."""
        known = _get(self._rates, "categories", category) is not None
        name = category if known else DEFAULT_CATEGORY
        return self._places(f"categories.{name}", ("categories", name))

    def _places(self, path: str, *sections: KeyPath) -> Places:
        windows = self._first("windows", sections)
        count = len(_get(self._rates, *windows) or ()) if windows else 0
        each = tuple(self._at((*windows, index)) for index in range(count))
        others = {key: self._first(key, sections) for key in (*UserSettings.keys(), "overall") if key != "windows"}
        return Places(path, each, {key: self._at(at) if at else "" for key, at in others.items()})

    def _first(self, key: str, sections: tuple[KeyPath, ...]) -> KeyPath:
        found = ((*section, key) for section in sections if section)
        return next((path for path in found if _get(self._rates, *path) is not None), ())

    def _at(self, path: KeyPath) -> str:
        if path[0] == "users" and (place := self._in_files.get(str(path[1]))):
            return place
        mark = self._source.values.get(path)
        return f"{self._name}:{mark.line}" if mark else self._name


def _get(data: Any, *path: str | int) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        else:
            return None
    return data
