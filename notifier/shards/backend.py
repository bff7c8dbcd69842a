"""Several shards as one backend: the same promises, each user's notifications on the shard where the user lives."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Redis

from notifier.errors import LimiterUnreachableError, RedisUnusableError
from notifier.limiter import Hold, Permit
from notifier.limiter.aio_users import AsyncUserLimiter
from notifier.limiter.redis import acquire_call, refund_call, reset_call
from notifier.producer.backend import RedisBackend
from notifier.rules.policies import Rules
from notifier.rules.policy import Policy
from notifier.scripts.loader import Call
from notifier.scripts.ownership import fenced
from notifier.shards.exchanges import ShardExchanges, at_home
from notifier.shards.map import Map, connect_all
from notifier.store.aio import Calls
from notifier.store.exchange import Exchange, exchange, exchange_async

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")


class Shards(RedisBackend):
    """A `Backend` that is several Redis; see `ShardExchanges`."""

    def __init__(self, settings: Settings) -> None:
        """Connects to `redis.shards`."""
        self._stack = ExitStack()
        clients = self._stack.enter_context(connect_all(settings))
        super().__init__(clients, ShardExchanges(settings), ShardedLimiter(Map.of(settings.redis), clients))

    def close(self) -> None:
        """Close the connections to all shards."""
        self._stack.close()


class ShardedLimiter:
    """A `UserLimiter` over shards: each user's is the one where the user lives."""

    def __init__(self, of: Map, clients: Mapping[str, Redis]) -> None:
        self._map = of
        self._clients = clients

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.acquire`."""
        return self._ask(user, acquire_call(user, rules, cost, take=True))

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.peek`."""
        return self._ask(user, acquire_call(user, rules, cost, take=False))

    def refund(self, permit: Permit) -> bool:
        """See `UserLimiter.refund`."""
        return self._ask(permit.user, refund_call(permit))

    def reset(self, user: str, *categories: str) -> int:
        """See `UserLimiter.reset`."""
        return self._ask(user, reset_call(user, categories))

    def _ask(self, user: str, call: Call[T]) -> T:
        try:
            return exchange(self._clients, _at_home(self._map, user, call))
        except RedisUnusableError as error:
            raise LimiterUnreachableError(str(error)) from error


class AsyncShardedLimiter(AsyncUserLimiter):
    """The same for asyncio."""

    def __init__(self, of: Map, clients: Mapping[str, Any], *, timeout: float, calls: Calls) -> None:
        """clients: of asyncio, by shard. timeout, calls: see `AsyncUserLimiter`."""
        super().__init__(None, timeout=timeout, calls=calls)
        self._map = of
        self._clients = clients

    async def _ask(self, user: str, call: Call[T], within: float) -> T:
        try:
            return await exchange_async(self._clients, _at_home(self._map, user, call), within)
        except RedisUnusableError as error:
            raise LimiterUnreachableError(str(error)) from error


def _at_home(of: Map, user: str, call: Call[T]) -> Exchange[T]:
    """Ask once: a send that was counted, and of which no answer came, would be counted again."""

    def ask(_: str, fence: Mapping[str, bool]) -> Exchange[T]:
        answer: T = yield fenced(call, fence)
        return answer

    return at_home(of, user, ask, once=True)
