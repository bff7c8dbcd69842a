"""docs/reference/configuration.md: every key with its form, its default and what it does, out of the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from docs.settings_comments import Path
from docs.settings_schema import overriding, schema, sections
from notifier.settings.templates import template
from notifier.settings.yaml_source import read_yaml, write_yaml

OPENING: Final = """\
# Every key of the configuration

`notifier config init` writes a first file, `notifier config init --full` one with every key and its comment.
`notifier config check` finds mistakes, with their lines. Commands read the file that `--config` names, else the one of
`NOTIFIER_CONFIG`, else config/notifier.yaml.

- A duration is a number and a unit: `1500ms`, `10s`, `7d`, `1hour`.
- A rate is a limit and an interval: `10/minute`, `5/10s`.
- NAME is a name of your choice.
- The YAML of a section shows its form: not all of it is the default, which the table tells.

This page is made from the schema: `make reference`.
"""
NEEDED: Final = ("client", "lane")  # without which a section around an example would be wrong
_TOLD: Final = re.compile(r" (Default: [^.]+|The default|Required)\.")
FORMS: Final = {"1500ms": "a duration", "1d": "a duration", "10/minute": "a rate"}  # by the first example


def settings_page() -> str:
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
            head = f"## {_title(path)}\n\n{_sentence(node)}\n\n{_example(path, node)}"
            parts.append(head + "\n".join(_table(node, places)) + "\n")
    return "\n".join(parts)


def _title(path: Path) -> str:
    return ".".join("NAME" if part == "*" else part for part in path) or "The file"


def _sentence(node: dict[str, Any]) -> str:
    text: str = node.get("description", "").splitlines()[0]
    return text


def _example(path: Path, node: dict[str, Any]) -> str:
    """Return the lines of the full configuration in this section, without the sections in it; '' if there are none."""
    found: Any = read_yaml(template("full")).data
    around: list[tuple[dict[str, Any], str]] = []
    for part in path:
        if not isinstance(found, dict):
            return ""
        name = next((name for name, each in found.items() if isinstance(each, dict)), "") if part == "*" else part
        around.append(({each: found[each] for each in NEEDED if each in found}, name))
        found = found.get(name)
    if not around or not isinstance(found, dict):
        return ""
    shown: Any = {key: value for key, value in found.items() if key in node["properties"] and not _holds_more(value)}
    if not shown:
        return ""
    for needed, name in reversed(around):
        shown = {**needed, name: shown}
    return f"```yaml\n{write_yaml(shown)}```\n\n"


def _holds_more(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def _table(node: dict[str, Any], places: dict[str, str]) -> Iterator[str]:
    yield "| key | value | default | what it does |"
    yield "|---|---|---|---|"
    required, first = node.get("required", ()), dict[str, str]()
    for key, value in node["properties"].items():
        default = "required" if key in required else _default(value)
        said = value.get("description", "")
        if said and first.setdefault(said, key) != key:
            said = f"See `{first[said]}`."
        elif default:  # it has a column
            said = _TOLD.sub("", said)
        cells = (f"`{key}`", _form(value, places), default, said)
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
            forms = dict.fromkeys(_form(one, places) for one in choices if one != {"type": "null"})
            return " or ".join(filter(None, forms))
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
