"""The configurations that are shipped, and what their comments say of keys, as `make reference` collects it."""

from __future__ import annotations

import json
from importlib import resources


def template(name: str) -> str:
    """Return the text of a configuration: 'first' or 'full'."""
    return _read(f"{name}.yaml")


def descriptions() -> dict[str, str]:
    """Return the comment above each key of the full configuration, by the key's path: `worker.lease`, `users.*.gap`."""
    found: dict[str, str] = json.loads(_read("descriptions.json"))
    return found


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
