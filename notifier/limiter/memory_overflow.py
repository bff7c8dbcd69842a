"""How many may wait: the twin of `_overflow`. What RQ deletes, and its cancelling, are left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from notifier.overload import Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from notifier.limiter.lines import Job
    from notifier.limiter.memory_jobs import Entry
    from notifier.limiter.memory_newcomers import Newcomers

MOST_OLDEST = 10


class Overflow:
    """What *enqueue* does where `max_waiting` is reached.

    jobs: those that have not ended. queued: how many stand in the queues, cancelled ones too.
    """

    def __init__(self, jobs: Mapping[str, Entry], queues: Mapping[str, Collection[str]], newcomers: Newcomers) -> None:
        self._jobs = jobs
        self._queues = queues
        self._newcomers = newcomers

    def make_room(self, job: Job, in_all: int | None, *, later: bool) -> Entry | Refused | None:
        """None where there is room, the entry that makes room (dropped, or replaced), or the refusal.

        later: it has a time of its own, and takes nobody's place.
        """
        if job.overflow is None:
            return None
        meta = json.loads(job.meta)
        user, category, collapse_id = meta["user"], meta.get("category", "default"), meta.get("collapse_id")
        refused = self._beyond(user, job.max_waiting, in_all)
        if refused is None:
            return None
        if job.overflow == "collapse" and collapse_id and not later:
            return self._newcomers.waiting(user, category, collapse_id) or refused
        return (self._oldest(user, category) if job.overflow == "drop_oldest" else None) or refused

    def _beyond(self, user: str, of_user: int | None, in_all: int | None) -> Refused | None:
        waiting = sum(
            (entry.state == "line" and entry.user == user) or entry.arriving == user for entry in self._jobs.values()
        )
        if of_user is not None and waiting >= of_user:
            return Refused(user, "user", waiting, of_user)
        waiting = sum(map(len, self._queues.values()))
        waiting += sum(entry.state in {"line", "later"} for entry in self._jobs.values())
        return Refused(user, "all", waiting, in_all) if in_all is not None and waiting >= in_all else None

    def _oldest(self, user: str, category: str) -> Entry | None:
        lined = [e for e in self._jobs.values() if e.state == "line" and (e.user, e.category) == (user, category)]
        lined.sort(key=lambda entry: entry.order or 0)
        normal = [entry for entry in lined if (entry.order or 0) >= 0]
        return next((entry for entry in (normal or lined)[:MOST_OLDEST] if entry.untried), None)
