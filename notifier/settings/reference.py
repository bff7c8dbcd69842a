"""docs/reference/configuration.md: every key with its form, its default and what it does, out of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from notifier.settings.comments import Path
from notifier.settings.json_schema import overriding, schema, sections

OPENING: Final = """\
# Every key of the configuration

Made from the schema by `make schema`; do not edit. The file is found by `--config`, else `NOTIFIER_CONFIG`, else as
config/notifier.yaml. `notifier config init` writes a first one, `notifier config init --full` one with every key.
Durations are a number and a unit (`1500ms`, `10s`, `7d`), rates a limit and an interval (`10/minute`, `5/10s`).
"""
FORMS: Final = {"1500ms": "a duration", "1d": "a duration", "10/minute": "a rate"}  # by the first example


def reference_text() -> str:
    """The page as text."""
    whole = schema()
    found, overrides = list(sections(whole)), overriding()
    places = {name: _title(path) for path, name, _ in found}
    parts = [OPENING]
    for path, name, node in found:
        if name in overrides:
            parts.append(f"## {_title(path)}\n\n{_sentence(node)} What its keys do: `{places[overrides[name]]}`.\n")
            keys = ", ".join(f"`{key}`" for key in node["properties"])
            parts.append(f"Keys: {keys}.\n")
        else:
            parts.append(f"## {_title(path)}\n\n{_sentence(node)}\n\n" + "\n".join(_table(node, places)) + "\n")
    return "\n".join(parts)


def _title(path: Path) -> str:
    return ".".join("NAME" if part == "*" else part for part in path) or "The file"


def _sentence(node: dict[str, Any]) -> str:
    text: str = node.get("description", "").splitlines()[0]
    return text


def _table(node: dict[str, Any], places: dict[str, str]) -> Iterator[str]:
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    required = node.get("required", ())
    for key, value in node["properties"].items():
        default = "required" if key in required else _default(value)
        cells = (f"`{key}`", _form(value, places), default, value.get("description", ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default is None or isinstance(default, dict) or default in ("", []):
        return ""
    shown = f"[{', '.join(default)}]" if isinstance(default, list) else str(default)
    return f"`{shown.lower() if isinstance(default, bool) else shown}`"


def _form(value: dict[str, Any], places: dict[str, str]) -> str:
    match value:
        case {"$ref": str(ref)}:
            return f"section `{places[ref.rpartition('/')[2]]}`"
        case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
            return " or ".join(dict.fromkeys(_form(one, places) for one in choices if one != {"type": "null"}))
        case {"type": "array", "items": dict(inner)}:
            return f"list of: {_form(inner, places)}"
        case {"type": "object", "additionalProperties": dict(inner)}:
            return f"NAME: {_form(inner, places)}"
    return _plain_form(value)


def _plain_form(value: dict[str, Any]) -> str:
    match value:
        case {"enum": list(words)}:
            return ", ".join(f"`{word}`" for word in words)
        case {"const": word}:
            return f"`{word}`"
        case {"type": "integer", "minimum": least, **rest}:
            return f"{least:,} to {rest['maximum']:,}" if "maximum" in rest else f"{least:,} or more"
        case {"examples": [first, *_]}:
            return FORMS.get(first, f"as `{first}`")
    return {"boolean": "`true`, `false`", "string": "text"}.get(value.get("type", ""), "")
