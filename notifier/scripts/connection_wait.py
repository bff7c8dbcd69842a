"""Waiting for a connection: redis-py raises where all of a pool's connections are in use, also if Redis is well.

So a crowd would look like an outage. Calls of ours take turns instead: as many at once as the pool has connections.
Where others use the same pool, a call waits until they have given one back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

T = TypeVar("T")
MAX_AT_ONCE: Final = 100
WITHIN_S: Final = 5.0  # where the client has no timeout of its own
FULL: Final = "Too many connections"  # what redis-py says, before anything was sent
AGAIN_S: Final = 0.002
# Of every client: redis-py 7 and newer would look up its own version on the disk for each connection, which takes 1 ms.
DRIVER: Final = {"driver_info": redis.DriverInfo()} if hasattr(redis, "DriverInfo") else {}

# Not a semaphore, which is Python: a signal's handler that raises in one, or asks, would leave its lock taken for ever.
_threads: WeakKeyDictionary[Any, SimpleQueue[None]] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # the calls that are under way are the parent's
    os.register_at_fork(after_in_child=_threads.clear)
    os.register_at_fork(after_in_child=_tasks.clear)


class Whole:
    """A connection of redis-py's that is made whole or not at all; put it before a class that blocks.

    redis-py takes one for made that a signal's handler broke off by raising: without its password or its database.
    """

    def connect(self) -> None:
        """See redis-py."""
        self._whole(super().connect)  # type: ignore[misc]

    def connect_check_health(self, **how: Any) -> None:
        """See redis-py after 5.3; it connects by this one too."""
        self._whole(partial(super().connect_check_health, **how))  # type: ignore[misc]

    def _whole(self, connect: Callable[[], object]) -> None:
        try:
            connect()
        except BaseException:
            self.disconnect()  # type: ignore[attr-defined]
            raise


class Answering:
    """A pool of redis-py's in which a signal's handler that raises shifts no answers; put it before one that blocks."""

    def release(self, connection: Any) -> None:
        """See redis-py. What it raises itself, it raises when all is read, or has disconnected."""
        # Also within an `except` block of the program's own: there a call costs a new connection, no more.
        ended_by = sys.exc_info()[1]
        if ended_by is not None and not isinstance(ended_by, RedisError):
            connection.disconnect()
        super().release(connection)  # type: ignore[misc]


def make_whole(client: Any) -> None:
    """Let a `redis.Redis` make each of its connections whole or not at all."""
    pool = client.connection_pool
    pool.connection_class = type(f"Whole{pool.connection_class.__name__}", (Whole, pool.connection_class), {})


def in_turn(client: Any, do: Callable[[], T]) -> T:
    """Return what `do` does with a connection of a `redis.Redis`; raise ConnectionError if none is free in time."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:  # a cluster's client
        return do()
    turns = _threads.get(pool)
    if turns is None:
        turns = SimpleQueue()
        for _ in range(_most(pool)):
            turns.put(None)
        turns = _threads.setdefault(pool, turns)
    within = _within_s(pool)
    ends = time.monotonic() + within
    try:
        turns.get(timeout=within)
    except Empty:
        raise _none_free(within) from None
    try:
        while True:
            try:
                return do()
            except RedisConnectionError as error:
                if str(error) != FULL or time.monotonic() >= ends:
                    raise
            time.sleep(AGAIN_S)
    finally:
        turns.put(None)


async def in_turn_async(client: Any, do: Callable[[], Awaitable[T]]) -> T:
    """Return what `do` does with a connection of a `redis.asyncio.Redis`; as `in_turn`."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return await do()
    turns = _tasks.get(pool)
    if turns is None:
        turns = _tasks.setdefault(pool, asyncio.Semaphore(_most(pool)))
    within = _within_s(pool)
    ends = time.monotonic() + within
    try:
        async with asyncio.timeout(within if turns.locked() else None):
            await turns.acquire()
    except TimeoutError:
        raise _none_free(within) from None
    try:
        while True:
            try:
                return await do()
            except RedisConnectionError as error:
                if str(error) != FULL or time.monotonic() >= ends:
                    raise
            await asyncio.sleep(AGAIN_S)
    finally:
        turns.release()


def _most(pool: Any) -> int:
    return min(int(pool.max_connections), MAX_AT_ONCE)


def _within_s(pool: Any) -> float:
    return float(pool.connection_kwargs.get("socket_timeout") or WITHIN_S)


def _none_free(within: float) -> RedisConnectionError:
    return RedisConnectionError(f"no connection to Redis became free within {within:g} s")
