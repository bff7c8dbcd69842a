"""Deadlines of tasks. One timer serves all, as a timer for each would cost as much as a call to Redis."""

from __future__ import annotations

import asyncio
from typing import Any, Final

SWEEP_S: Final = 0.05
SWEEPS: Final = 4  # times SWEEP_S: how late a deadline may be noticed


class Deadlines:
    """Cancels a task when SWEEPS sweeps in a row found its deadline passed.

    If the process was paused, or gets little CPU, answers have come meanwhile, and timeouts of the provider's client
    have passed: the tasks take notice of them between the sweeps.
    """

    def __init__(self) -> None:
        self._until: dict[asyncio.Task[Any], float] = {}
        self._overdue: dict[asyncio.Task[Any], int] = {}  # how many sweeps found it overdue
        self._late: set[asyncio.Task[Any]] = set()
        self._sweeping = False

    def begin(self, until: float) -> asyncio.Task[Any]:
        """Cancel the current task unless `end` comes before `until`, by the loop's clock. Returns the task."""
        task = asyncio.current_task()
        assert task is not None
        self._until[task] = until
        if not self._sweeping:
            self._sweep()
        return task

    def has_passed(self, task: asyncio.Task[Any]) -> bool:
        """Whether its deadline alone cancelled the task, and nothing else such as the worker's end."""
        return task in self._late and task.cancelling() == 1

    def end(self, task: asyncio.Task[Any]) -> None:
        """Lift the task's deadline."""
        del self._until[task]
        if task in self._late:
            self._late.discard(task)
            task.uncancel()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        overdue = [task for task, until in self._until.items() if now >= until and task not in self._late]
        self._overdue = {task: self._overdue.get(task, 0) + 1 for task in overdue}
        for task, sweeps in self._overdue.items():
            if sweeps >= SWEEPS:
                self._late.add(task)
                task.cancel()
        self._sweeping = bool(self._until)
        if self._sweeping:
            loop.call_later(SWEEP_S, self._sweep)
