"""The limiter: whether a key may go now, and how long it has to wait if not."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.errors import LimiterUnreachableError as LimiterUnreachableError
    from notifier.limiter.aio import AsyncMemoryLimiter as AsyncMemoryLimiter
    from notifier.limiter.aio_redis import AsyncLimiter as AsyncLimiter
    from notifier.limiter.answers import (
        LimitExceeded as LimitExceeded,
        Point as Point,
        RankedKey as RankedKey,
        Usage as Usage,
    )
    from notifier.limiter.memory import MemoryLimiter as MemoryLimiter
    from notifier.limiter.protocol import Hold as Hold, Permit as Permit
    from notifier.limiter.sync import Limiter as Limiter
    from notifier.rules.calendar_windows import CalendarWindow as CalendarWindow
    from notifier.rules.policy import Burst as Burst, Policy as Policy, Window as Window

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.errors": "LimiterUnreachableError",
        "notifier.limiter.aio": "AsyncMemoryLimiter",
        "notifier.limiter.aio_redis": "AsyncLimiter",
        "notifier.limiter.answers": "LimitExceeded Point RankedKey Usage",
        "notifier.limiter.memory": "MemoryLimiter",
        "notifier.limiter.protocol": "Hold Permit",
        "notifier.limiter.sync": "Limiter",
        "notifier.rules.calendar_windows": "CalendarWindow",
        "notifier.rules.policy": "Burst Policy Window",
    },
)
