"""Read JSON of other programs, and check the texts and values of a notification.

Each check raises InvalidNotificationError with the name of the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeGuard, cast

from notifier.errors import InvalidNotificationError

DATA_DEPTH: Final = 32
MAX_SHOWN: Final = 200  # characters of a key in the path of a value: a path is built for every value
to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict).encode
NUMBER_BITS: Final = 1024  # programs that read JSON's numbers as doubles take a longer one for infinity


def read_object(text: bytes | str) -> dict[str, Any] | None:
    """Parse a JSON object; None if the text is anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def fields_of(text: bytes | str | None) -> dict[str, Any]:
    """Parse a JSON object, such as a job's meta; {} if the text is anything else."""
    return (read_object(text) if text else None) or {}


def is_mapping(value: object) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # isinstance of Mapping takes five times as long


def is_text(value: object) -> TypeGuard[str]:
    """Whether the value is a real `str`: a proxy of Flask or Django passes isinstance, and JSON makes it a list."""
    return issubclass(type(value), str)


def plain_text(value: Any) -> Any:
    """Turn text into a plain `str`: an f-string writes a member of a `(str, Enum)` by its name. Other values stay."""
    return str.__str__(value) if is_text(value) else value


def check_text(name: str, value: object, limit: int) -> str:
    """Return the text as a plain `str`. Refuse any other value, empty text, and more than `limit` bytes."""
    if not is_text(value):
        raise InvalidNotificationError(name, f"must be text, is {type(value).__name__}")
    if not value:
        raise InvalidNotificationError(name, "must not be empty")
    check_unicode(name, value)
    if (size := len(value.encode())) > limit:
        raise InvalidNotificationError(name, f"is {size} bytes long; at most {limit} are allowed")
    return str.__str__(value)


def check_unicode(name: str, text: str) -> None:
    """Refuse text that UTF-8 cannot carry, such as half of a surrogate pair: no request can carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidNotificationError(name, "is not valid Unicode text") from None


def check_mapping(name: str, value: object) -> None:
    """Refuse a value that is no JSON object, or has a value in it that JSON cannot carry."""
    if not is_mapping(value):
        raise InvalidNotificationError(name, f"must be a mapping, is {type(value).__name__}")
    _check_json(name, dict(cast("Mapping[str, Any]", value)))


def _check_json(path: str, value: Any, depth: int = 0) -> None:
    if depth > DATA_DEPTH:
        raise InvalidNotificationError(path.partition(".")[0], f"is nested more than {DATA_DEPTH} deep")
    match value if value.__class__ is type(value) else ...:  # a proxy is not JSON, see `is_text`
        case None | bool():
            return
        case str():
            check_unicode(path, value)
        case int() | float():
            _check_number(path, value)
        case list() | tuple():
            for index, item in enumerate(value):
                _check_json(f"{path}[{index}]", item, depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidNotificationError(path, f"has the key {key!r}, which is not text")
                check_unicode(path, key)
                _check_json(f"{path}.{key[:MAX_SHOWN]}", item, depth + 1)
        case _:
            raise InvalidNotificationError(path, f"{type(value).__name__} is not JSON")


def _check_number(path: str, value: float) -> None:
    if isinstance(value, int):
        if value.bit_length() > NUMBER_BITS:
            raise InvalidNotificationError(path, f"is a number of more than {NUMBER_BITS} bits: give it as text")
    elif not math.isfinite(value):
        raise InvalidNotificationError(path, f"{value} is not a number that JSON can carry")
