"""Overload: how many notifications may wait, and what is said of those that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from notifier.errors import OverloadedError, Refused
from notifier.queue import calls
from notifier.rules.policies import Policies, WaitingLimits
from notifier.rules.preferences import Preferences


def by_choice(job: calls.Job, chosen: Preferences, limits: WaitingLimits, policies: Policies) -> calls.Job:
    """The job, with the `max_waiting` of the tier that its user chose, where that has one."""
    most = limits.tiers.get(chosen.tier or "")
    return job if most is None else replace(job, max_waiting=most, overflow=policies.category(job.category).overflow)


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
