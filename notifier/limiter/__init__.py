"""The limiter: who may go now, and how long the others have to wait."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.limiter.aio import AsyncLimiter
    from notifier.limiter.answers import LimitExceeded, Point, RankedKey, Usage
    from notifier.limiter.memory import MemoryLimiter
    from notifier.limiter.protocol import Hold, Permit, UserLimiter
    from notifier.limiter.redis import RedisLimiter
    from notifier.limiter.sync import Limiter
    from notifier.rules.policy import Burst, Policy, Window

__all__ = [
    "AsyncLimiter",
    "Burst",
    "Hold",
    "LimitExceeded",
    "Limiter",
    "MemoryLimiter",
    "Permit",
    "Point",
    "Policy",
    "RankedKey",
    "RedisLimiter",
    "Usage",
    "UserLimiter",
    "Window",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.limiter.aio": "AsyncLimiter",
        "notifier.limiter.answers": "LimitExceeded Point RankedKey Usage",
        "notifier.limiter.memory": "MemoryLimiter",
        "notifier.limiter.protocol": "Hold Permit UserLimiter",
        "notifier.limiter.redis": "RedisLimiter",
        "notifier.limiter.sync": "Limiter",
        "notifier.rules.policy": "Burst Policy Window",
    },
)
