"""A simulator's log that a test can wait for."""

import asyncio

from notifier.simulators.wire import Arrival, WireLog


class Log(WireLog):
    """A wire log that can be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def record(self, arrival: Arrival) -> None:
        super().record(arrival)
        for count, event in self._waiting:
            if len(self.arrivals) >= count:
                event.set()

    async def reach(self, count: int) -> None:
        event = asyncio.Event()
        self._waiting.append((count, event))
        if len(self.arrivals) >= count:
            event.set()
        await asyncio.wait_for(event.wait(), 10)
