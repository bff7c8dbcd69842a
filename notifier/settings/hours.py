"""Quiet hours and send hours in the configuration, with their forms for editors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, PlainValidator

from notifier.rules.hours import DAYS_FORM, HOURS_FORM, parse_hours

TEXT: TypeAlias = Annotated[str, Field(pattern=f"^{HOURS_FORM}$", examples=["21:00-08:00"])]
DAYS: TypeAlias = Annotated[str, Field(pattern=f"^{DAYS_FORM}$")]
FORM: TypeAlias = TEXT | list[TEXT] | dict[DAYS, TEXT | list[TEXT]]


def _hours_or(word: str, instead: Any, what: str, value: object) -> Any:
    if value == word:
        return instead
    try:
        return parse_hours(value, what)
    except ValueError as error:
        raise ValueError(f"{error}, or {word}") from None


def _check(word: Literal["none", "ignore"], instead: Any, what: str) -> PlainValidator:
    check: Callable[[object], Any] = partial(_hours_or, word, instead, what)
    return PlainValidator(check, json_schema_input_type=Literal[word] | FORM)


QUIET_OR_NONE: Final = _check("none", (), "quiet hours")
QUIET_OR_IGNORE: Final = _check("ignore", "ignore", "quiet hours")
SEND_OR_NONE: Final = _check("none", (), "send hours")
