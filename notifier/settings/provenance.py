"""Find the line of the configuration that a rule comes from, in the order of resolution that `Policies` states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from notifier.rules.category import DEFAULT_CATEGORY
from notifier.settings.yaml_source import Path as KeyPath
from notifier.settings.yaml_source import Source

if TYPE_CHECKING:
    from notifier.settings.schema import Settings


@dataclass(frozen=True, slots=True)
class Places:
    """The places of the rules of one user or category. path: their section in the file, for people.

    at: returns the place of one rule as `file:line`, or '' if the file does not give the rule. Its arguments are the
    rule's key and, of a window, the index.
    """

    path: str
    at: Callable[..., str]


class Provenance:
    """The places of the rules in one configuration, which must be valid."""

    def __init__(self, settings: Settings, source: Source, name: str) -> None:
        """source: the places of the rates, empty if they are in no file. name: of the file, or of rates in no file."""
        self._rates, self._in_files = settings.rates, settings.places_in_files
        self._source, self._name = source, name

    def of_user(self, user: str) -> Places:
        entry = _get(self._rates, "users", user)
        own = [("tiers", entry)] if isinstance(entry, str) else [("users", user)] if entry is not None else []
        named = ".".join(own[0]) if own else "user"
        if isinstance(entry, str):
            named = f"{self._in_files.get(user) or f'users.{user}'} → {named}"
        elif user in self._in_files:
            named = f"users_from, {user}"
        return Places(named, partial(self._at, [*own, ("user",)]))

    def of_category(self, category: str) -> Places:
        """Return the places of a category's rules. A category that is not in the file follows `default`."""
        known = _get(self._rates, "categories", category) is not None
        name = category if known else DEFAULT_CATEGORY
        return Places(f"categories.{name}", partial(self._at, [("categories", name)]))

    def _at(self, sections: Iterable[KeyPath], key: str, *index: int) -> str:
        given = (section for section in sections if _get(self._rates, *section, key) is not None)
        if (section := next(given, None)) is None:
            return ""
        path = (*section, key, *index)
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
