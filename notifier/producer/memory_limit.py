"""The limit of memory: it refuses notifications well before Redis itself is full."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from notifier.errors import OverloadedError, Refused
from notifier.scripts.keys import redis_key
from notifier.scripts.records import Job
from notifier.settings.memory import _FORM, UNITS
from notifier.store.exchange import Commands, Exchange, Once

LOOK_EVERY_S: Final = 1.0


class MemoryLimit:
    """Reads a Redis's use of memory at most once a second. Between two looks, accepted jobs may exceed the limit.

    text: a share of Redis's `maxmemory`, or of its host's memory if Redis has no `maxmemory`; or an amount.
    """

    def __init__(self, text: str) -> None:
        match = _FORM.fullmatch(text)
        assert match is not None
        self._number, self._unit = int(match[1]), match[2]
        self._looked_at = -LOOK_EVERY_S
        self._used = self._most = 0

    def check(self, jobs: Sequence[Job]) -> Exchange[None]:
        """If the limit is reached, count these jobs as refused, and raise OverloadedError for all of them."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            (memory,) = yield Commands(lambda pipe: pipe.info("memory"))
            self._look(memory)
            self._looked_at = now
        if self._used < self._most:
            return
        with suppress(RedisError):  # a Redis that is full takes no count either
            yield Once(lambda redis: redis.hincrby(redis_key("stats"), "refused", len(jobs)))
        refused = [Refused(job.user, "memory", self._used, self._most, place) for place, job in enumerate(jobs)]
        raise OverloadedError(refused, len(jobs))

    def _look(self, info: dict[str, int]) -> None:
        self._used = info["used_memory"]
        if self._unit == "%":
            self._most = (info["maxmemory"] or info["total_system_memory"]) * self._number // 100
        else:
            self._most = self._number * UNITS[self._unit]
