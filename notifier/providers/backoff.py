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
LONGEST_BACKOFF_S: Final = 30.0


class Backoff:
    """When to try again after failures: from 0.2 s doubled to 30 s, with jitter; by the loop's clock."""

    def __init__(self) -> None:
        self.failing = False
        self.proven = False  # a try has worked at some time
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

    def hold(self, until: float) -> None:
        """Wait until that moment: for what trying again soon cannot mend."""
        self.failing, self._until = True, until


class Turns:
    """One at a time for each device, in the order of asking, so that what goes over several connections at once
    reaches a device in order (law 4).
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._askers: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def turn(self, token: str, until: float) -> AsyncIterator[bool]:
        """Hold the turn of this device; False where it did not come until that moment of the loop's clock."""
        lock = self._locks.setdefault(token, asyncio.Lock())
        self._askers[token] = self._askers.get(token, 0) + 1
        held = False
        try:
            with contextlib.suppress(TimeoutError):
                if lock.locked():
                    async with asyncio.timeout_at(until):
                        held = await lock.acquire()
                else:
                    held = await lock.acquire()
            yield held
        finally:
            if held:
                lock.release()
            self._askers[token] -= 1
            if not self._askers[token]:
                del self._askers[token], self._locks[token]
