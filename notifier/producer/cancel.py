"""Cancelling: which notifications are meant, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from notifier.errors import InvalidNotificationError
from notifier.notification.json_values import check_text, check_unicode
from notifier.notification.notification import COLLAPSE_ID_BYTES, TAG_BYTES, check_name
from notifier.queue import backlogs
from notifier.queue.walk import Kind

NEITHER = "give cancel a job id, or user= and what else is to match"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """How many of several notifications were cancelled.

    cancelled: how many will not be sent.
    too_late: the job ids of those that a worker had already, or that have ended.
    unknown: the job ids that are unknown, or no longer kept (of `cancel_many`).
    """

    cancelled: int = 0
    too_late: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, job_ids: Sequence[str], answers: Sequence[backlogs.Cancelled]) -> Cancellation:
        """Count the answers, one for each notification."""
        both = list(zip(job_ids, answers, strict=True))
        return cls(
            sum(answer == "cancelled" for answer in answers),
            tuple(job_id for job_id, answer in both if answer in {"sending", "ended"}),
            tuple(job_id for job_id, answer in both if answer == "unknown"),
        )

    def __str__(self) -> str:
        """Say how many, for a log."""
        counts = {"too late": len(self.too_late), "unknown": len(self.unknown)}
        return ", ".join([f"{self.cancelled} cancelled", *(f"{n} {what}" for what, n in counts.items() if n)])


def each_of(job_ids: Iterable[str]) -> Iterator[str]:
    """One job id after the other. Raises InvalidNotificationError for text: each letter would be a job id."""
    if isinstance(job_ids, str):
        raise InvalidNotificationError("job_ids", "give a list of job ids, not text")
    return iter(job_ids)


def each_once(job_ids: Iterable[str]) -> list[str]:
    """The job ids, checked and without repeats. Raises InvalidNotificationError."""
    return list({check_job_id(job_id): None for job_id in each_of(job_ids)})


def check_job_id(job_id: str) -> str:
    """Return the id if a job of RQ may have it. Raises InvalidNotificationError."""
    if not isinstance(job_id, str):
        raise InvalidNotificationError("job_id", f"must be text, is {type(job_id).__name__}")
    check_unicode("job_id", job_id)
    return job_id


def kind_of(category: str | None, collapse_id: str | None, tag: str | None) -> Kind:
    """The notifications that are meant. Raises InvalidNotificationError for a value that no notification can have."""
    if category is not None:
        check_name("category", category)
    if collapse_id is not None:
        check_text("collapse_id", collapse_id, COLLAPSE_ID_BYTES)
    if tag is not None:
        check_text("tag", tag, TAG_BYTES)
    return Kind(category, collapse_id, tag)
