"""The JSON Schema of the configuration, generated from the model: config/notifier.schema.json, for editors."""

from __future__ import annotations

import json
from typing import Any

from notifier.settings.schema import Settings
from notifier.units import format_duration


def schema_text() -> str:
    """The schema as text, two blanks deep, with a line's end."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The schema as JSON Schema 2020-12."""
    generated: dict[str, Any] = _as_written(Settings.model_json_schema(by_alias=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "push-throttle configuration",
        **generated,
    }


def _as_written(node: Any) -> Any:
    """The schema of the file as people write it: of a text that is a number inside, the default is text too."""
    if isinstance(node, list):
        return [_as_written(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    # Pydantic's titles say a key's name again; a property may be called title, and is a mapping.
    kept = {key: _as_written(value) for key, value in node.items() if key != "title" or isinstance(value, dict)}
    match kept:
        case {"anyOf": [dict(of_value), {"type": "null"}], **rest}:
            # What may be left out is left out, not written as null.
            return of_value | {key: value for key, value in rest.items() if value is not None}
        case {"type": "string", "default": int(us)}:
            return kept | {"default": format_duration(us)}
    return kept
