"""When to try a provider again, and whose turn it is: what pooled connections need and one connection does not."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator
from typing import Final

SECOND_US: Final = 1_000_000
FIRST_BACKOFF_S: Final = 0.2
# For a connection, or a stream of one, where the provider is there; a lease leaves 1.5 beside the longest timeout.
ENOUGH_S: Final = 1.4
LONGEST_BACKOFF_S: Final = 8.0  # less than a circuit's longest wait, or its probes would be answered here


class Backoff:
    """When to try again after failures: from 0.2 s doubled to 8 s, with jitter; by the loop's clock."""

    def __init__(self) -> None:
        self.failing = False
        self.proven = False  # a try has worked at some time
        self.seen = ""  # why the last one failed, for people
        self._next_s = FIRST_BACKOFF_S
        self._until = -math.inf
        self._changed = -math.inf

    def left_us(self, now: float) -> int:
        """Microseconds until the next try; 0 is now."""
        return max(math.ceil((self._until - now) * SECOND_US), 0) if self._until > now else 0

    def failed(self, began: float, now: float) -> bool:
        """Note a failed try; whether it is the first of an outage.

        Of many tries under way together only the first counts, and none that began before one that worked.
        """
        if began < self._changed:
            return False
        first, self.failing, self._changed = not self.failing, True, now
        self._until = now + self._next_s * random.uniform(0.5, 1.0)  # noqa: S311
        self._next_s = min(self._next_s * 2, LONGEST_BACKOFF_S)
        return first

    def worked(self, now: float) -> bool:
        """Note a try that worked; whether it ended an outage."""
        ended, self.failing, self.proven, self._changed = self.failing, False, True, now
        self._next_s, self._until = FIRST_BACKOFF_S, -math.inf
        return ended

    def has_worked_since(self, began: float) -> bool:
        """Whether a try has worked since that moment, and none has failed after it."""
        return not self.failing and self._changed >= began

    def hold(self, until: float) -> None:
        """Wait until that moment: for what trying again soon cannot mend."""
        self.failing, self._until = True, until


class Turns:
    """One at a time for each device, in the order of asking, so that what goes over several connections at once
    reaches a device in order (law 4).
    """

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[None]] = {}  # by device, the end of the last turn that was asked for

    @contextlib.asynccontextmanager
    async def turn(self, token: str, until: float) -> AsyncIterator[bool]:
        """Hold the turn of this device with ``async with``, which tells False where it did not come until then.

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
            else:  # it was given up: who comes next waits for the one before
                before.add_done_callback(lambda _: self._end(token, mine))

    def _end(self, token: str, turn: asyncio.Future[None]) -> None:
        turn.set_result(None)
        if self._ends[token] is turn:
            del self._ends[token]
