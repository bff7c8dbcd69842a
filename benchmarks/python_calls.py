"""The Python of a worker for a message, in calls of functions: load does not disturb their number.

A worker of this process delivers what waits, with the null provider, once few and once many; the difference is what
the messages cost. Python's own and C's functions count alike. Below it those that are called most.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any, Final

from redis import Redis

from benchmarks.harness import own_redis
from benchmarks.null_worker import RATES, NullProvider
from benchmarks.workload import notifications
from notifier import Notifier
from notifier.log import configure_logging
from notifier.settings import parse_settings
from workers import PushWorker
from workers.loop.engine import Engine

FEW: Final = 1_000
MANY: Final = 5_000
SHOWN: Final = 25


class Counting:
    """Counts the calls of functions by name while a worker's engine runs."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            self.calls[f"{frame.f_code.co_filename.rpartition('/')[2]}: {frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            self.calls[f"{getattr(function, '__module__', None) or ''}.{function.__qualname__}"] += 1


def deliver(redis: Redis, count: int) -> Counter[str]:
    """Count the calls in which a worker delivers so many."""
    redis.flushall()
    settings = parse_settings(RATES)
    Notifier(redis, settings).send_many(notifications(count))
    counting, run = Counting(), Engine.run

    async def counted(engine: Engine, **bounds: Any) -> None:
        with counting:
            await run(engine, **bounds)

    Engine.run = counted  # type: ignore[assignment,method-assign]
    try:
        worker = PushWorker(["default"], connection=redis, settings=settings, providers={"fcm": NullProvider()})
        worker.work(burst=True, logging_level="WARNING")
    finally:
        Engine.run = run  # type: ignore[method-assign]
    return counting.calls


def main() -> None:
    """Print how many a message costs, and of which functions they are."""
    configure_logging("json", "warning")
    with own_redis() as (_, redis):
        deliver(redis, 10)  # what is loaded, once
        few, many = deliver(redis, FEW), deliver(redis, MANY)
    many.subtract(few)
    messages = MANY - FEW
    print(f"{many.total() / messages:8.1f} calls a message")
    for name, calls in many.most_common(SHOWN):
        print(f"{calls / messages:8.2f} {name}")


if __name__ == "__main__":
    main()
