"""Quiet hours and send hours in the configuration: their forms for editors, and whether they leave time to send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, PlainValidator

from notifier.rules.hours import (
    DAYS_FORM,
    HOURS_FORM,
    Hours,
    closed_minutes,
    longest_open_us,
    parse_hours,
    text_of,
)

TEXT: TypeAlias = Annotated[str, Field(pattern=f"^{HOURS_FORM}$", examples=["21:00-08:00"])]
DAYS: TypeAlias = Annotated[str, Field(pattern=f"^{DAYS_FORM}$")]
FORM: TypeAlias = TEXT | list[TEXT] | dict[DAYS, TEXT | list[TEXT]]


@dataclass(frozen=True, slots=True)
class Given:
    """The quiet hours and the send hours of one section, with those of `user` for what it does not give.

    key: which of the two it gives itself; the first, where both.
    """

    key: str
    quiet: tuple[Hours, ...]
    send: tuple[Hours, ...]

    @classmethod
    def of(cls, quiet: tuple[Hours, ...] | None, send: tuple[Hours, ...] | None, user: Given | None = None) -> Given:
        """Put what a section gives, or None, over what `user` has."""
        below = user or NOTHING
        key = "send_hours" if quiet is None else "quiet_hours"
        return cls(key, below.quiet if quiet is None else quiet, below.send if send is None else send)

    @property
    def closed(self) -> int:
        """The minutes of a week in which nothing is sent."""
        return closed_minutes(self.quiet, self.send)

    def __str__(self) -> str:
        parts = [text_of(self.quiet)] if self.quiet else []
        return " and ".join([*parts, f"send_hours {text_of(self.send)}"] if self.send else parts)


NOTHING: Final = Given("quiet_hours", (), ())


def without_time(
    users: Mapping[str, Given], categories: Mapping[str, Given], lead_us: int
) -> Iterator[tuple[str, str]]:
    """The keys whose hours leave less than `lead_us` in a row, and why. users, categories: by the section's path."""
    also = {given.closed: given for given in users.values()}
    for path, given in {**users, **categories}.items():
        if longest_open_us(given.closed) <= lead_us:
            yield _no_time(path, given, str(given))
            continue
        for closed, other in also.items() if path in categories else ():
            if longest_open_us(closed | given.closed) <= lead_us:
                yield _no_time(path, given, f"{given}, beside the {other} of users,")


def _no_time(path: str, given: Given, held: str) -> tuple[str, str]:
    return (f"{path}.{given.key}", f"{held} leaves no time to send; leave more than worker.lease")


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
