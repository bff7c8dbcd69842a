"""Overload: how many notifications may wait, and what is said of those that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from notifier.errors import OverloadedError, Refused


def accepted(answers: Sequence[str | Refused]) -> list[str]:
    """The job ids of those that were accepted."""
    return [answer for answer in answers if isinstance(answer, str)]


def all_accepted(answers: list[str | Refused]) -> list[str]:
    """The job ids; raise OverloadedError where some were refused."""
    over = [replace(answer, place=n) for n, answer in enumerate(answers) if isinstance(answer, Refused)]
    if over:
        raise OverloadedError(over, len(answers))
    return accepted(answers)
