"""The limiter: who may go now, and how long the others have to wait."""

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
