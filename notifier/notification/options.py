"""Check the options of a platform against the table of those that it takes.

Each check raises InvalidNotificationError with the name of the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from notifier.errors import InvalidNotificationError

Check: TypeAlias = Callable[[str, Any], None]  # called with the path of a value, and the value
Fields: TypeAlias = Mapping[str, "type | Check | Fields"]


def check_fields(path: str, given: Any, known: Fields) -> None:
    """Refuse an option that is not in the table, or whose value does not fit; a tuple counts as a list."""
    MAPPING(path, given)
    for name, value in given.items():
        where, rule = f"{path}.{name}", known.get(name)
        if rule is None:
            raise InvalidNotificationError(where, f"is not an option; known are {', '.join(known)}")
        if isinstance(rule, Mapping):
            check_fields(where, value, rule)
        elif not isinstance(rule, type):
            rule(where, value)
        elif type(value) is not rule and not (rule is list and isinstance(value, tuple)):
            raise InvalidNotificationError(where, f"must be of the type {rule.__name__}")


def must_be(meaning: str, fits: Callable[[Any], bool]) -> Check:
    """Make a check that a value fits. meaning: a right value in words, for the error."""

    def check(path: str, value: Any) -> None:
        if not fits(value):
            raise InvalidNotificationError(path, f"must be {meaning}")

    return check


def one_of(*words: str) -> Check:
    return must_be(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def of_form(pattern: str, meaning: str) -> Check:
    form = re.compile(pattern)
    return must_be(meaning, lambda value: isinstance(value, str) and form.fullmatch(value) is not None)


def list_of(each: Check, meaning: str) -> Check:
    is_list = _is_a(list | tuple, f"a list of {meaning}")

    def check(path: str, value: Any) -> None:
        is_list(path, value)
        for index, item in enumerate(value):
            each(f"{path}[{index}]", item)

    return check


def _is_a(kind: Any, meaning: str) -> Check:
    def check(path: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise InvalidNotificationError(path, f"must be {meaning}, is {type(value).__name__}")

    return check


MAPPING: Final = _is_a(Mapping, "a mapping")
TEXT: Final = _is_a(str, "text")
FLAG: Final = must_be("true or false", lambda value: isinstance(value, bool))
