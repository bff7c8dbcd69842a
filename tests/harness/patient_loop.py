"""An event loop whose clock stands while other programs have the processor, and may be set ahead.

Timeouts, backoffs and simulated delays of one process are to each other then as on a quiet machine: a handshake that
takes seconds because the machine is busy ends within a timeout of one, and a backoff is not over before the sends begin
that it is to stop. What begins in one turn of the loop begins at one time, so its timeouts are over in one turn too.
For tests whose servers run in the same loop; a lease in Redis follows Redis's clock.
"""

import asyncio
import selectors
import time

# The most that one turn of the loop counts for. On a quiet machine nearly none takes longer.
TURN_S = 0.02


class _Selector(selectors.DefaultSelector):
    """Keeps the loop's clock, `now`: a turn of the loop is what happens between two calls of `select`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self._turn_began = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        entered = time.monotonic()
        turn = min(entered - self._turn_began, TURN_S)
        found = super().select(None if timeout is None else max(0.0, timeout - turn))
        self._turn_began = time.monotonic()
        passed = turn + self._turn_began - entered
        self.now += passed if timeout is None else min(passed, max(timeout, turn))
        return found


class PatientLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """The loop's clock."""
        return self._clock.now


def skip(seconds: float) -> None:
    """Set the running loop's clock ahead: what was to come within this time is due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, PatientLoop)
    loop._clock.now += seconds
