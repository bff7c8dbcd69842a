"""Who joins a line for the first time, and whose place it takes: the twin of `_collapse` and of `first_time`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from notifier.limiter.memory_jobs import steering

if TYPE_CHECKING:
    from notifier.limiter.memory_jobs import Entry
    from notifier.policy import Category

HIGH: Final = 2**50  # a high priority's order lies below every normal arrival's


def first_time(entry: Entry, now: int, order: int) -> bool:
    """Read whom a job is for, and give it its order; False for what is no notification of ours."""
    meta = steering(entry.job.meta)
    if meta is None:
        return False
    entry.arriving = ""
    entry.user, entry.category = meta["user"], meta.get("category", "default")
    entry.order = order - (HIGH if meta.get("priority") == "high" else 0)
    entry.unlike = entry.order < 0
    entry.since_us, zone = now, meta.get("zone")
    entry.zone = zone if isinstance(zone, str) else None
    expires_in = meta.get("expires_in")
    if entry.deadline_us is None and isinstance(expires_in, int | float) and not isinstance(expires_in, bool):
        entry.deadline_us = now + math.floor(expires_in * 1_000_000)
    collapse_id = meta.get("collapse_id")
    entry.collapse_id = collapse_id if isinstance(collapse_id, str) else None
    return True


class Newcomers:
    """Those that wait in their lines and have been with no worker, by their collapse ids."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str, str], Entry] = {}

    def join(self, entry: Entry, category: Category) -> Entry | None:
        """Take the place of the one with the same collapse id, where the category collapses; returns that one."""
        if category.digest is not None:
            entry.collapse_id = ""
        elif not category.counts:
            entry.collapse_id = None
        if entry.collapse_id is None:
            return None
        old = self.waiting(entry.user, entry.category, entry.collapse_id)
        if category.when_blocked in {"collapse", "digest"} and old is not None:
            self.replace(old, entry)
            if category.digest is not None:
                entry.gather_us = 0 if entry.count >= category.digest.after else old.gather_us
            return old
        self._note(entry)
        return None

    def replace(self, old: Entry, entry: Entry) -> None:
        """Take the place of `old`, unless the newer one's own is further in front."""
        assert old.order is not None
        assert entry.order is not None
        entry.unlike = entry.order < old.order or entry.targets != old.targets
        entry.count, entry.order = old.count + 1, min(old.order, entry.order)
        self._note(entry)

    def waiting(self, user: str, category: str, collapse_id: str) -> Entry | None:
        """Who waits under a collapse id."""
        return self._waiting.get((user, category, collapse_id))

    def _note(self, entry: Entry) -> None:
        assert entry.collapse_id is not None
        self._waiting[entry.user, entry.category, entry.collapse_id] = entry

    def forget(self, entry: Entry) -> None:
        """It is no newcomer any more: a worker has it, or it has ended."""
        entry.unlike = True
        if entry.collapse_id is not None:
            key = (entry.user, entry.category, entry.collapse_id)
            if self._waiting.get(key) is entry:
                del self._waiting[key]
            entry.collapse_id = None
