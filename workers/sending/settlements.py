"""The settlements of leased jobs: the result of each, as the worker reports it to Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from notifier.notification.job import encode_reason
from notifier.providers.contract import Outcome
from notifier.queue.backlogs import EXPIRED
from notifier.queue.calls import Settlement, State
from notifier.queue.history import Handed
from notifier.scripts.records import Leased

# After these outcomes a device is tried again without spending an attempt, as the message did not cause them.
FREE: Final = frozenset({Outcome.UNSENT, Outcome.FAULT, Outcome.BUSY, Outcome.FULL})
EXPIRED_HERE: Final = "expired before its provider could take it"


def settled(
    leased: Leased, state: State, word: str = "", detail: str | int = "", answered: str = "", *, reached: bool
) -> Settlement:
    """The settlement of a job. reached: whether it may have reached the user, so that its permit stays."""
    return Settlement(
        leased.job_id, leased.permit, leased.user, leased.category, reached, state, word, detail, answered
    )


def delivered(leased: Leased, *, reached: bool, route: str = "", handed: Handed | None = None) -> Settlement:
    """The end of a job that a device took."""
    job_id, permit, user, category, *_ = leased
    return Settlement(job_id, permit, user, category, reached, "delivered", "delivered", "", "", (), route, handed)


def failed(leased: Leased, reason: str, word: str = "failed", *, reached: bool = False) -> Settlement:
    """The end of a job that is not tried again. word: for people, such as 'rejected'."""
    return settled(leased, "failed", word, encode_reason(reason), reached=reached)


def log_fields(job: Leased | Settlement) -> dict[str, str]:
    """The fields by which a line of the log names this job."""
    return {"user": job.user, "job_id": job.job_id, "category": job.category}


def end_unsent(leased: Leased, log: Callable[[], Any]) -> Settlement | None:
    """The end of a job of another function that is dropped or has expired; None for one that is to run."""
    if leased.dropped or (leased.left_us is not None and leased.left_us <= 0):
        return unsent(leased, {}, log)
    return None


def unsent(leased: Leased, answered: Mapping[str, str], log: Callable[[], Any]) -> Settlement:
    """The end of a job that is dropped, or expired before it could be sent."""
    if not leased.dropped:
        return expired(leased, answered, log, reached=False)
    log().info("dropped")
    return settled(leased, "dropped", "dropped", leased.dropped, reached=False)


def expired(leased: Leased, answered: Mapping[str, str], log: Callable[[], Any], *, reached: bool) -> Settlement:
    if Outcome.DELIVERED.value in answered.values():  # one device took it; the others had no time left
        return delivered(leased, reached=reached)
    log().info("expired")
    late = leased.left_us is not None and leased.left_us > 0
    return failed(leased, EXPIRED_HERE if late else EXPIRED, "expired", reached=reached)


def returned(leased: Leased) -> Settlement:
    """Return a job to the head of its backlog. Its send never began, so its permit is refunded."""
    return settled(leased, "backlog", reached=False)


def broken_off(leased: Leased) -> Settlement:
    """Return a job to the head of its backlog. It may have been sent, so its permit stays; no attempt is spent."""
    return settled(leased, "backlog", reached=True)


def is_deferred(settlement: Settlement) -> bool:
    """Whether a provider did not take a job for now: it goes back to its backlog, and no later job may overtake it."""
    replies = () if settlement.handed is None else settlement.handed.replies
    return settlement.state == "backlog" and any(reply.outcome in FREE for reply in replies)
