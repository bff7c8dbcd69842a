"""The configurations that are shipped, and their JSON Schema."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

SCHEMA: Final = "notifier.schema.json"


def template(name: str) -> str:
    """Return the text of a configuration: 'first' or 'full'."""
    return resources.files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def schema_text() -> str:
    """Return the JSON Schema of the configuration, for editors: from the package, or in a clone from `config`."""
    packaged = resources.files(__package__).joinpath(SCHEMA)
    found = packaged if packaged.is_file() else Path(__file__).parents[3] / "config" / SCHEMA
    return found.read_text(encoding="utf-8")
