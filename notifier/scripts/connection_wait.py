"""Waiting for a connection: redis-py raises an error if all connections of a pool are in use, even if Redis is well.

So many calls at once would look like an outage. Our calls take turns instead: as many at once as the pool has
connections. If the program uses the same pool, a call waits until the program gives a connection back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

T = TypeVar("T")
MAX_AT_ONCE: Final = 100
WITHIN_S: Final = 5.0  # if the client has no timeout of its own
FULL: Final = "Too many connections"  # redis-py's message, before it sends anything
AGAIN_S: Final = 0.002

# Queues in C, not semaphores in Python: a signal handler that raises within a semaphore leaves its lock taken.
_threads: WeakKeyDictionary[Any, SimpleQueue[None]] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # calls under way are the parent's
    os.register_at_fork(after_in_child=_threads.clear)
    os.register_at_fork(after_in_child=_tasks.clear)


class _Whole(redis.ConnectionPool):
    """A pool that survives a signal handler that raises; a caller that finds no free connection waits.

    A connection that the handler broke off is closed: half made, or with an unread reply. A lost one does not count.
    """

    def reset(self) -> None:
        super().reset()
        self._in_use_connections = WeakSet()  # type: ignore[assignment]
        self._lock = RLock()  # a signal handler may use the pool as well

    def make_connection(self) -> Any:
        self._created_connections = len(self._in_use_connections) + len(self._available_connections)
        return super().make_connection()

    def get_connection(self, *command: Any, **options: Any) -> Any:
        ends = time.monotonic() + _within_s(self)
        return _when_free(partial(super().get_connection, *command, **options), ends)

    def release(self, connection: Any) -> None:
        if _is_broken_off():
            connection.disconnect()
        super().release(connection)


class _AsyncWhole(redis.asyncio.ConnectionPool):
    async def release(self, connection: Any) -> None:
        if _is_broken_off():
            await connection.disconnect(nowait=True)
        await super().release(connection)


class OfOneLoop:
    """An object with asyncio connections. It belongs to the first event loop that uses it, until that loop closes it.

    Another event loop would break its calls. The child of a fork would write to its connections, and the parent would
    read the replies.
    """

    _used_by: tuple[int, asyncio.AbstractEventLoop] | None = None

    def _is_used_here(self) -> None:
        """Raise RuntimeError in another event loop or process."""
        here = os.getpid(), asyncio.get_running_loop()
        self._used_by = self._used_by or here
        if self._used_by != here:
            which = "event loop" if self._used_by[0] == here[0] else "process, which has forked this one"
            name = type(self).__name__
            raise RuntimeError(f"this {name} belongs to another {which}: make one for each, or close it there")

    def _leave(self, client: Any = None) -> None:
        """Let another event loop use it. Its calls take new turns, as a semaphore belongs to one event loop."""
        self._used_by = None
        if (pool := getattr(client, "connection_pool", None)) is not None:
            _tasks.pop(pool, None)
        elif client is not None:
            client._lock = None  # noqa: SLF001 - redis-py does the same, and makes another


def make_whole(client: T) -> T:
    """Return a client of redis-py's, not of a cluster, with a pool that survives signal handlers."""
    pool: Any = client.connection_pool  # type: ignore[attr-defined]
    kind = _Whole if isinstance(pool, redis.ConnectionPool) else _AsyncWhole
    if not isinstance(pool, kind):
        pool.__class__ = type(kind.__name__, (kind, type(pool)), {})
        pool.reset()
        if hasattr(redis, "DriverInfo"):  # else each connection reads redis-py's version from the disk: 1 ms
            pool.connection_kwargs.setdefault("driver_info", redis.DriverInfo())
    return client


def _is_broken_off() -> bool:
    # redis-py raises its own errors only after it has read the reply or disconnected. In an `except` block of the
    # program's, this costs no more than a new connection.
    ended_by = sys.exc_info()[1]
    return ended_by is not None and not isinstance(ended_by, RedisError)


def _when_free(do: Callable[[], T], ends: float) -> T:
    while True:
        try:
            return do()
        except RedisConnectionError as error:
            if str(error) != FULL or time.monotonic() >= ends:
                raise
        time.sleep(AGAIN_S)


def in_turn(client: Any, do: Callable[[], T]) -> T:
    """Run `do` once the pool of a `redis.Redis` has a free connection. Raises ConnectionError if none is in time."""
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
        return _when_free(do, ends)
    finally:
        turns.put(None)


async def in_turn_async(client: Any, do: Callable[[], Awaitable[T]]) -> T:
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        await client.initialize()  # once: with many first calls at once redis-py closes new connections
        return await do()
    turns = _tasks.get(pool) or _tasks.setdefault(pool, asyncio.Semaphore(_most(pool)))
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
