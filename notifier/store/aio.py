"""Clients to Redis for asyncio, with the options of the synchronous ones of `notifier.store.connection`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.sentinel import SentinelConnectionPool

from notifier.scripts.connection_wait import make_whole
from notifier.store import cluster
from notifier.store.connection import client_of, use_keys_of
from notifier.store.demoted import leave_demoted
from notifier.store.exchange import in_time
from notifier.store.sentinel import AsyncPrimary
from notifier.store.sign_in import async_class

if TYPE_CHECKING:
    from notifier.settings import RedisSettings

T = TypeVar("T")

# A full pool refuses calls. This one never fills: callers limit how many of their calls run at once, see `in_turn`.
MAX_CONNECTIONS: Final = 10_000
# Prefixes of the options that an asyncio client does not take from a synchronous one: the retry, and objects that
# redis-py keeps there for that client alone.
NOT_SHARED: Final = ("connection_pool", "retry", "himport_", "event_dispatcher", "maint_", "orig_")


def connect_async(config: RedisSettings) -> redis.asyncio.Redis:
    """Return an asyncio client, not yet connected. Raise as `connect`."""
    use_keys_of(config)
    return async_of(config)


def async_of(config: RedisSettings, beside: redis.asyncio.Redis | None = None) -> redis.asyncio.Redis:
    """As `connect_async`, but do not set how this process names its keys. beside: see `cluster.client_of`."""
    client = client_of(config)  # opens nothing; checks the URL
    options = client.connection_pool.connection_kwargs
    return async_like(client, {**options, "max_connections": MAX_CONNECTIONS}, beside)


def async_like(
    client: redis.Redis, options: Mapping[str, Any], beside: redis.asyncio.Redis | None = None
) -> redis.asyncio.Redis:
    """An asyncio client to the same server as a synchronous one. options: of its connections.

    It repeats a call only if a node of a cluster refused it before any of it ran. beside: see `cluster.client_of`.
    """
    kept = {name: value for name, value in options.items() if not name.startswith(NOT_SHARED)}
    kept["retry"] = Retry(NoBackoff(), 0)
    pool = client.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return make_whole(AsyncPrimary(pool, kept))
    if cluster.is_followed(pool):
        return cluster.async_client_of(pool, kept, beside)
    # By `from_pool` the client owns its pool: closing the client also closes the pool's connections.
    made = redis.asyncio.Redis.from_pool(
        redis.asyncio.ConnectionPool(connection_class=async_class(pool.connection_class), **kept)
    )
    leave_demoted(made)
    return make_whole(made)


async def in_turn(slots: asyncio.Semaphore, call: Coroutine[Any, Any, T], within: float) -> T:
    """Wait for a free slot, then for the call; return its result. Raises TimeoutError after `within` seconds."""
    ends = asyncio.get_running_loop().time() + within
    try:
        async with asyncio.timeout_at(ends):
            await slots.acquire()
    except BaseException:
        call.close()
        raise
    try:
        return await in_time(call, ends - asyncio.get_running_loop().time())
    finally:
        slots.release()
