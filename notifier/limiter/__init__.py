"""The limiter: who may be sent to now, and how long the others have to wait."""

from notifier.limiter.memory import MemoryLimiter
from notifier.limiter.protocol import Hold, Limiter, Permit
from notifier.limiter.redis import RedisLimiter

__all__ = ["Hold", "Limiter", "MemoryLimiter", "Permit", "RedisLimiter"]
