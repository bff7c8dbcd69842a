"""Overload: how many notifications may wait, and what is said of those that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from notifier.errors import OverloadedError, Refused


def accepted(answers: Sequence[str | Refused]) -> list[str]:
    """The job ids of those that were accepted."""
    return [answer for answer in answers if isinstance(answer, str)]


def all_accepted(answers: Sequence[str | Refused], partitions: int = 1) -> list[str]:
    """The job ids; raise OverloadedError where some were refused, by one of so many partitions."""
    if over := refused(answers, partitions):
        raise OverloadedError(over, len(answers))
    return accepted(answers)


def refused(answers: Sequence[str | Refused], partitions: int) -> list[Refused]:
    """Return those that were refused, with their places, by one of so many partitions."""
    found = ((n, answer) for n, answer in enumerate(answers) if isinstance(answer, Refused))
    return [replace(answer, place=n, partitions=partitions) for n, answer in found]
