"""The answers to an enqueue: which notifications were accepted, and which were refused for overload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from notifier.errors import OverloadedError, Refused


def accepted(answers: Sequence[str | Refused]) -> list[str]:
    """The job ids of the accepted notifications."""
    return [answer for answer in answers if isinstance(answer, str)]


def all_accepted(answers: Sequence[str | Refused], partitions: int = 1) -> list[str]:
    """The job ids; raise OverloadedError if some were refused. partitions: how many the fleet has."""
    if over := refused(answers, partitions):
        raise OverloadedError(over, len(answers))
    return accepted(answers)


def refused(answers: Sequence[str | Refused], partitions: int) -> list[Refused]:
    """The refusals, with their places. partitions: how many the fleet has."""
    found = ((n, answer) for n, answer in enumerate(answers) if isinstance(answer, Refused))
    return [replace(answer, place=n, partitions=partitions) for n, answer in found]
