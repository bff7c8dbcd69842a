"""Turn pydantic's errors into messages for the author of the file: line, key, what is wrong, what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from notifier.settings.checks import kind
from notifier.settings.schema_types import Section
from notifier.settings.yaml_source import Mark, Problem, Source
from notifier.settings.yaml_source import Path as KeyPath
from notifier.texts import meant
from notifier.units import shown

MUST: Final = {
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "int_type": "a whole number without a unit",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text, in quotes where it looks like something else",
    "string_too_long": "text of at most {max_length} characters",
    # `FunctionName` is the only type whose pattern pydantic checks.
    "string_pattern_mismatch": "the name of a module or function, such as shop.tasks or blog.mail.send",
}

MAX_SHOWN: Final = 64  # as long as a name may be


@dataclass(frozen=True, slots=True)
class Finding:
    """An error at its place in the source. `explain` writes its message, which is slow, only if the error is shown."""

    mark: Mark | None
    path: KeyPath
    details: ErrorDetails

    def explain(self, schema: type[BaseModel]) -> Problem:
        return Problem(self.mark, self.path, message(self.details, self.path, schema))


def findings(error: ValidationError, source: Source) -> list[Finding]:
    found = []
    for details in error.errors(include_url=False):
        path, of_key = _place(details)
        for at in details.get("ctx", {}).get("at", [""]):
            full = (*path, *at.split(".")) if at else path
            found.append(Finding(_mark(full, source.of(full), of_key=of_key), full, details))
    return found


def _place(details: ErrorDetails) -> tuple[KeyPath, bool]:
    """Return the path in the file, and whether the key is wrong rather than its value."""
    path = details["loc"]
    # Remove what is not in the file: the tag of a user's entry, and `[key]`, by which pydantic marks a wrong key.
    if path[0:1] == ("users",) and path[2:3] in {("<tier>",), ("<rules>",)}:
        path = (*path[:2], *path[3:])
    if details["type"] == "value_error" and path[-1:] == ("[key]",):
        return path[:-1], True
    return path, details["type"] == "extra_forbidden"


def line_of(name: str, problem: Problem) -> str:
    """Write a problem as `file:line:column: path.to.key: what is wrong; what would be right`."""
    where = f"{name}:{problem.mark.line}:{problem.mark.column}" if problem.mark else name
    path = "".join(_step(part) for part in problem.path).removeprefix(".")
    return f"{where}: {path}: {problem.message}" if path else f"{where}: {problem.message}"


def _mark(path: KeyPath, source: Source, *, of_key: bool) -> Mark | None:
    if not of_key and path in source.values:
        return source.values[path]
    # A missing key is shown at the key or list item that should contain it.
    while path:
        places = source.values if isinstance(path[-1], int) else source.keys
        if path in places:
            return places[path]
        path = path[:-1]
    return Mark(1, 1) if source.values else None


def message(details: ErrorDetails, path: KeyPath, schema: type[BaseModel]) -> str:
    """Say what is wrong at a path of a file of this schema, and what would be right."""
    value, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "value_error":
            message = str(context["error"])
        case "extra_forbidden":
            message = _unknown_key(path, schema)
        case "missing":
            literals = _literals(path, schema)
            message = f"is missing; give one of {', '.join(literals)}" if literals else "is missing"
        case "literal_error":
            message = f"must be one of {', '.join(_literals(path, schema))}, is {_shown(value)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            message = _not_a_mapping(path, value)
        case other:
            must = MUST.get(other)
            message = f"must be {must.format(**context)}, is {_shown(value)}" if must else details["msg"]
    return message


def _not_a_mapping(path: KeyPath, value: object) -> str:
    if path[:1] == ("users",) and len(path) > 1:
        return f"must be the name of a tier, or a mapping such as {{gap: 10s}}, is {kind(value)}"
    hint = "; write {} or delete the key" if value is None else ""
    return f"must be a mapping of keys, is {kind(value)}{hint}"


def _shown(value: object) -> str:
    """Quote a wrong value if it is short and plain, else name its type."""
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return shown(value) if isinstance(value, str) else kind(value)


def _unknown_key(path: KeyPath, schema: type[BaseModel]) -> str:
    wrong = "not installed" if path[:-1] == ("providers",) else "unknown key"
    return f"{wrong}; {meant(str(path[-1]), _keys(_section(path[:-1], schema)))}"


def _literals(path: KeyPath, schema: type[BaseModel]) -> list[str]:
    annotation = _keys(_section(path[:-1], schema)).get(str(path[-1]))
    return [option for option in get_args(annotation) if isinstance(option, str)]


def _keys(section: Any) -> dict[str, Any]:
    """Return the keys of a section as they are written in the file, with the type of each."""
    return section.keys() if isinstance(section, type) and issubclass(section, Section) else {}


def _section(path: KeyPath, schema: Any) -> Any:
    """Return the section of the schema that stands at a path of the file, or None."""
    for part in path:
        if isinstance(part, int):  # in a list: `schema` is the type of its items already
            continue
        of_names = get_origin(schema) is dict
        schema = _alternative(get_args(schema)[1] if of_names else _keys(schema).get(str(part)))
    return schema


def _alternative(annotation: Any) -> Any:
    """Return the alternative of a type that has keys, such as `X` of `X | None` or of `str | X`; None if none has."""
    annotation = getattr(annotation, "json_schema_input_type", annotation)  # a validator says what a file may contain
    if isinstance(annotation, type) or get_origin(annotation) is dict:
        return annotation if get_origin(annotation) is dict or issubclass(annotation, BaseModel) else None
    found = (_alternative(inner) for inner in get_args(annotation))
    return next((section for section in found if section is not None), None)


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    plain = part.replace("_", "a").replace("-", "a").isalnum() and len(part) <= MAX_SHOWN
    return f".{part}" if plain else f"[{shown(part)}]"
