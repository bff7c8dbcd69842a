"""The sections of a configuration that are rates: their version, and the changes from some rates to others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

SECTIONS: Final = ("zone", "user", "tiers", "users", "users_may", "categories", "limits")


def version_of(rates: Mapping[str, Any]) -> str:
    """Return the version of rates: the same on every host for equal rates, whatever else the file contains."""
    whole = hashlib.sha256()
    for name in SECTIONS:
        given = rates.get(name) or {}
        entries = given if isinstance(given, Mapping) else {"": given}
        for key in sorted(entries):  # one by one: a long call would hold up the worker's sends
            whole.update(json.dumps([name, key, entries[key]], sort_keys=True).encode())
    return whole.hexdigest()[:12]


def rates_in(data: Any) -> dict[str, Any]:
    """Return the sections that are rates from a configuration's plain data."""
    return {name: data[name] for name in SECTIONS if name in data} if isinstance(data, dict) else {}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of rates. lines: each entry that goes (`-`) or comes (`+`). lost: sections that the new rates lack."""

    lines: list[str]
    lost: list[str]


def change_to(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    lost = [name for name in SECTIONS if before.get(name) and name not in after]
    return Change(list(_differences(before, after)), lost)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each entry that goes or comes: `- users.42: quiet`, `+ users.42: {gap: 5s}`."""
    for name in SECTIONS:
        old, new = _entries(before, name), _entries(after, name)
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) == new.get(key):
                continue
            if key in old:
                yield f"- {key}: {_shown(old[key])}"
            if key in new:
                yield f"+ {key}: {_shown(new[key])}"


def _entries(rates: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = rates.get(name)
    if isinstance(given, Mapping):
        return {f"{name}.{key}": value for key, value in given.items()}
    return {} if given is None else {name: given}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)
