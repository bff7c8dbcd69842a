"""config/notifier.schema.json: the JSON Schema of the configuration, out of the model and the full file's comments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import create_model

from docs.settings_comments import ANY, Path, comments
from notifier.notification.platforms import OURS
from notifier.settings.schema import Settings
from notifier.settings.schema_providers import ProvidersSettings, providers_of
from notifier.settings.schema_rules import EveryoneSettings, UserSettings
from notifier.units import format_duration


def schema_text() -> str:
    """The schema as text, two blanks deep, with a line's end."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The schema as JSON Schema 2020-12."""
    # With each platform of ours: `Settings` itself learns of those that a file names.
    providers = providers_of(tuple(OURS))
    whole = create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, providers=(providers, providers()))
    generated: dict[str, Any] = _as_written(whole.model_json_schema(by_alias=True))
    # A package may bring another platform, whose keys nobody knows here.
    generated["$defs"]["ProvidersSettings"]["additionalProperties"] = {"type": "object"}
    _describe(generated)
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
        case {"anyOf": [*values, {"type": "null"}], "default": None, **rest}:
            # What may be left out is left out, not written as null; which takes a default away, where there is one.
            return (values[0] if len(values) == 1 else {"anyOf": values}) | rest
        case {"type": "string", "default": int(us)}:
            return kept | {"default": format_duration(us)}
        case {"default": dict(section)}:
            return kept | {"default": {key: value for key, value in section.items() if value is not None}}
    return kept


def overriding() -> dict[str, str]:
    """The sections that override another, which holds what there is to say of their keys."""
    sections = ProvidersSettings.keys().values()
    apps = {get_args(each.model_fields["apps"].annotation)[1].__name__: each.__name__ for each in sections}
    return {UserSettings.__name__: EveryoneSettings.__name__, **apps}


def sections(schema: dict[str, Any]) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Each section of the file once: where it stands first, its name in `$defs` ('' of the whole), and what it is."""
    seen: set[str] = set()

    def walk(path: Path, name: str, node: dict[str, Any]) -> Iterator[tuple[Path, str, dict[str, Any]]]:
        yield path, name, node
        for key, value in node["properties"].items():
            for at, inner in _sections_in((*path, key), value):
                if inner not in seen:
                    seen.add(inner)
                    yield from walk(at, inner, schema["$defs"][inner])

    yield from walk((), "", schema)


def _sections_in(path: Path, node: Any) -> Iterator[tuple[Path, str]]:
    """The sections that a key's value may be, or hold."""
    if "$ref" in node:
        yield path, node["$ref"].rpartition("/")[2]
    for choice in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _sections_in(path, choice)
    for many in ("items", "additionalProperties"):
        if isinstance(node.get(many), dict):
            yield from _sections_in((*path, ANY), node[many])


def _describe(schema: dict[str, Any]) -> None:
    """Give each key what the full configuration says of it, for editors and for the reference."""
    found = list(sections(schema))
    said = comments(frozenset(key for _, _, node in found for key in node["properties"]))
    like, overrides = {name: path for path, name, _ in found}, overriding()
    for path, name, node in found:
        other = like.get(overrides.get(name, ""), path)
        for key, value in node["properties"].items():
            text = said.get(".".join((*path, key))) or said.get(".".join((*other, key)))
            if text and "description" not in value:
                value["description"] = text
