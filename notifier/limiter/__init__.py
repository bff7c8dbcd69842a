"""The limiter: who may go now, and how long the others have to wait."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.errors import LimiterUnreachableError
    from notifier.limiter.aio import AsyncMemoryLimiter
    from notifier.limiter.aio_redis import AsyncLimiter
    from notifier.limiter.answers import LimitExceeded, Point, RankedKey, Usage
    from notifier.limiter.memory import MemoryLimiter
    from notifier.limiter.protocol import Hold, Permit
    from notifier.limiter.sync import Limiter
    from notifier.rules.calendar_windows import CalendarWindow
    from notifier.rules.policy import Burst, Policy, Window

__all__ = [
    "AsyncLimiter",
    "AsyncMemoryLimiter",
    "Burst",
    "CalendarWindow",
    "Hold",
    "LimitExceeded",
    "Limiter",
    "LimiterUnreachableError",
    "MemoryLimiter",
    "Permit",
    "Point",
    "Policy",
    "RankedKey",
    "Usage",
    "Window",
]

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
