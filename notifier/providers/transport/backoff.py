"""Back-off after failures, and turns that keep each device's order over several connections."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Final

from redis.backoff import EqualJitterBackoff

SECOND_US: Final = 1_000_000
# Enough to get a connection or a stream if the provider is up; a lease leaves 1.5 s beyond the longest timeout.
ENOUGH_S: Final = 1.4
LONGEST_BACKOFF_S: Final = 8.0  # shorter than a circuit's longest wait; else its probes would only meet this back-off
WAITS: Final = EqualJitterBackoff(cap=LONGEST_BACKOFF_S, base=0.2)  # in seconds, by the number of failures before
MANY: Final = 16  # failures; more make no wait longer


class Backoff:
    """The wait after failures: 0.2 s, doubled up to 8 s, with jitter; by the loop's clock."""

    def __init__(self) -> None:
        self.failing = False
        self.proven = False  # a try has worked at least once
        self.seen = ""  # why the last one failed, for people
        self._failures = 0
        self._until = -math.inf
        self._changed = -math.inf

    def left_us(self, now: float) -> int:
        """Microseconds until the next try; 0 is now."""
        return max(math.ceil((self._until - now) * SECOND_US), 0) if self._until > now else 0

    def failed(self, began: float, now: float) -> bool:
        """Note a failed try. Returns whether it is the first of an outage.

        A try that began before the last failure or success was noted does not count.
        """
        if began < self._changed:
            return False
        first, self.failing, self._changed = not self.failing, True, now
        self._until = now + WAITS.compute(self._failures)
        self._failures = min(self._failures + 1, MANY)
        return first

    def worked(self, now: float) -> bool:
        """Note a try that worked. Returns whether it ended an outage."""
        ended, self.failing, self.proven, self._changed = self.failing, False, True, now
        self._failures, self._until = 0, -math.inf
        return ended

    def has_worked_since(self, began: float) -> bool:
        """Whether a try has worked since that moment, and none has failed after it."""
        return not self.failing and self._changed >= began

    def hold(self, until: float) -> None:
        """Wait until that moment, because an earlier try cannot help."""
        self.failing, self._until = True, until


class Turns:
    """One send at a time for each device, in the order of the calls: several connections would mix them up."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[None]] = {}  # by token: the end of the last turn that was requested

    @contextlib.asynccontextmanager
    async def turn(self, token: str, until: float) -> AsyncIterator[bool]:
        """Hold the turn of this device with ``async with``, which gives False if the turn did not come in time.

        until: on the loop's clock, in seconds.
        """
        loop = asyncio.get_running_loop()
        before, mine = self._ends.get(token), loop.create_future()
        self._ends[token] = mine
        try:
            if before is not None:
                await asyncio.wait([before], timeout=until - loop.time())
            yield before is None or before.done()
        finally:
            if before is None or before.done():
                self._end(token, mine)
            else:  # this turn was given up: the next one waits for the one before
                before.add_done_callback(lambda _: self._end(token, mine))

    def _end(self, token: str, turn: asyncio.Future[None]) -> None:
        turn.set_result(None)
        if self._ends[token] is turn:
            del self._ends[token]
