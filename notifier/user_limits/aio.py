"""AsyncUserLimiter: `UserLimiter` over redis.asyncio. It builds the same calls; only the waiting differs."""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Callable
from typing import Any, TypeVar

from redis.exceptions import RedisError

from notifier.errors import LimiterUnreachableError
from notifier.limiter.protocol import Hold
from notifier.limiter.requests import Timeout, ahead_us
from notifier.notification.notification import check_user
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Policy
from notifier.scripts.loader import Call, run_async
from notifier.store.aio import in_turn
from notifier.store.partitions import Partitions
from notifier.user_limits.protocol import UserPermit
from notifier.user_limits.redis import acquire_call, refund_call, reset_call

T = TypeVar("T")


class AsyncUserLimiter:
    """`UserLimiter` on a `redis.asyncio.Redis`, every method awaited.

    timeout: how long a call may take, in seconds, as a timedelta or as text; each call may give another.
    Raises LimiterUnreachableError where Redis cannot be asked in that time: then nothing may be sent.
    """

    def __init__(self, redis: Any, *, policies: Callable[[], Policies], timeout: float, slots: Semaphore) -> None:
        """policies: as of `RedisLimiter`. slots: of all calls of this client, as many as may be under way at once."""
        self._policies = policies
        self._partitions = Partitions.around(redis)
        self._slots = slots
        self._timeout = timeout

    async def acquire(
        self, user: str, rules: Policy | Rules, *, cost: int = 1, timeout: Timeout = None
    ) -> UserPermit | Hold:
        """See `UserLimiter.acquire`."""
        return await self._run(user, lambda: acquire_call(user, rules, cost, self._policies(), take=True), timeout)

    async def peek(
        self, user: str, rules: Policy | Rules, *, cost: int = 1, timeout: Timeout = None
    ) -> UserPermit | Hold:
        """See `UserLimiter.peek`."""
        return await self._run(user, lambda: acquire_call(user, rules, cost, self._policies(), take=False), timeout)

    async def refund(self, permit: UserPermit, *, timeout: Timeout = None) -> bool:
        """See `UserLimiter.refund`."""
        return await self._run(permit.user, lambda: refund_call(permit), timeout)

    async def reset(self, user: str, *categories: str, timeout: Timeout = None) -> int:
        """See `UserLimiter.reset`."""
        return await self._run(user, lambda: reset_call(user, categories), timeout)

    async def _run(self, user: str, make: Callable[[], Call[T]], timeout: Timeout) -> T:
        within = seconds(timeout, self._timeout)
        try:
            with self._partitions.at(check_user(user)) as redis:
                return await in_turn(self._slots, run_async(redis, make()), within)
        except TimeoutError:
            raise LimiterUnreachableError(f"the limiter's Redis does not answer within {within:g} s") from None
        except (RedisError, OSError) as error:
            raise LimiterUnreachableError(f"the limiter's Redis cannot be asked: {error}") from error


def seconds(timeout: Timeout, otherwise: float) -> float:
    """A time-out in seconds; raises TypeError or ValueError for what is none."""
    return otherwise if timeout is None else ahead_us(timeout) / 1e6
