"""Which line of the configuration each rule comes from. Follows the order of resolution that `Policies` states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from notifier.rules.category import DEFAULT_CATEGORY
from notifier.settings.schema_rules import UserSettings
from notifier.settings.users_files import Written
from notifier.settings.yaml_source import Path as KeyPath
from notifier.settings.yaml_source import Source


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

    def __init__(
        self,
        source: Source,
        name: str,
        in_files: Mapping[str, Written] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """source: its data and their places. name: its file; of data that has no places, what to call it.

        in_files: the users of `users_from`. places: where each stands.
        """
        self._source = source
        self._name = name
        self._in_files, self._places_in_files = in_files or {}, places or {}

    def of_user(self, user: str) -> Places:
        """Of the rules in force for a user."""
        entry = self._in_files.get(user)
        if isinstance(entry, Mapping):
            return self._of_file(user, entry)
        if entry is None:
            entry = _get(self._source.data, "users", user)
        own: KeyPath = ("tiers", entry) if isinstance(entry, str) else ("users", user) if entry is not None else ()
        whose = self._places_in_files.get(user) or f"users.{user}"
        named = f"{whose} → tiers.{entry}" if isinstance(entry, str) else ".".join(map(str, own))
        return self._places(named or "user", own, ("user",))

    def _of_file(self, user: str, entry: Mapping[str, Any]) -> Places:
        own, everyone = self._places_in_files[user], self._places("", ("user",))
        windows = (own,) * len(entry["windows"]) if "windows" in entry else everyone.windows
        others = {key: own if key in entry else place for key, place in everyone.others.items()}
        return Places(f"users_from, {user}", windows, others)

    def of_category(self, category: str) -> Places:
        """Of the rules of a category, or of those of `default`, which it follows where it is not in the file."""
        known = _get(self._source.data, "categories", category) is not None
        name = category if known else DEFAULT_CATEGORY
        return self._places(f"categories.{name}", ("categories", name))

    def _places(self, path: str, *sections: KeyPath) -> Places:
        windows = self._first("windows", sections)
        count = len(_get(self._source.data, *windows) or ()) if windows else 0
        each = tuple(self._at((*windows, index)) for index in range(count))
        others = {key: self._first(key, sections) for key in (*UserSettings.keys(), "overall") if key != "windows"}
        return Places(path, each, {key: self._at(at) if at else "" for key, at in others.items()})

    def _first(self, key: str, sections: tuple[KeyPath, ...]) -> KeyPath:
        found = ((*section, key) for section in sections if section)
        return next((path for path in found if _get(self._source.data, *path) is not None), ())

    def _at(self, path: KeyPath) -> str:
        mark = self._source.values.get(path)
        return f"{self._name}:{mark.line}" if mark else self._name


def _get(data: Any, *path: str | int) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        else:
            return None
    return data
