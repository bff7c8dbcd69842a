"""An event loop whose clock stands while other programs have the processor.

Timeouts, backoffs and simulated delays of one process are to each other then as on a quiet machine: a handshake that
takes seconds because the machine is busy ends within a timeout of one, and a backoff is not over before the sends begin
that it is to stop. For tests whose servers run in the same loop; a lease in Redis follows Redis's clock.
"""

from __future__ import annotations

import asyncio
import selectors
import time

# The most that one turn of the loop counts for. On a quiet machine nearly none takes longer.
TURN_S = 0.02


class _Selector(selectors.DefaultSelector):
    """Keeps the loop's clock: a turn of the loop is what happens between two calls of `select`."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped = 0.0
        self._turn_began = time.monotonic()

    def now(self) -> float:
        """Seconds that have counted."""
        return min(time.monotonic(), self._turn_began + TURN_S) - self._skipped

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        entered = time.monotonic()
        self._skipped += max(0.0, entered - self._turn_began - TURN_S)
        found = super().select(timeout)
        self._turn_began = time.monotonic()
        if timeout is not None:
            self._skipped += max(0.0, self._turn_began - entered - max(timeout, 0.0))
        return found


class PatientLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """The loop's clock."""
        return self._clock.now()
