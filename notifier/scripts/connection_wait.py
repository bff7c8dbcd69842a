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
from threading import RLock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

T = TypeVar("T")
MAX_AT_ONCE: Final = 100
WITHIN_S: Final = 5.0  # where the client has no timeout of its own
FULL: Final = "Too many connections"  # what redis-py says, before anything was sent
AGAIN_S: Final = 0.002

# Not a semaphore, which is Python: a signal's handler that raises in one, or asks, would leave its lock taken for ever.
_threads: WeakKeyDictionary[Any, SimpleQueue[None]] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # the calls that are under way are the parent's
    os.register_at_fork(after_in_child=_threads.clear)
    os.register_at_fork(after_in_child=_tasks.clear)


class _Whole(redis.ConnectionPool):
    """A signal's handler takes nothing from it by raising; who finds none free waits.

    What it broke off is closed: half made, or with an answer that nobody has read. What it lost does not count.
    """

    def reset(self) -> None:
        super().reset()
        self._in_use_connections = WeakSet()  # type: ignore[assignment]
        self._lock = RLock()  # a handler may ask

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
    """Has connections of asyncio, which belong to the event loop that uses it first, until that closes it.

    Another would break its calls; the child of a fork would write on its connections, and it would read the answers.
    """

    _used_by: tuple[int, asyncio.AbstractEventLoop] | None = None

    def _is_used_here(self) -> None:
        """Raise RuntimeError in another."""
        here = os.getpid(), asyncio.get_running_loop()
        self._used_by = self._used_by or here
        if self._used_by != here:
            which = "event loop" if self._used_by[0] == here[0] else "process, which has forked this one"
            name = type(self).__name__
            raise RuntimeError(f"this {name} belongs to another {which}: make one for each, or close it there")

    def _leave(self, client: Any = None) -> None:
        """Let another use it, whose calls take turns of their own: a semaphore is of the loop that waited first."""
        self._used_by = None
        if (pool := getattr(client, "connection_pool", None)) is not None:
            _tasks.pop(pool, None)
        elif client is not None:
            client._lock = None  # noqa: SLF001 - so does redis-py, which makes another


def make_whole(client: T) -> T:
    """Return a client of redis-py's, not of a cluster, when its pool is whole."""
    pool: Any = client.connection_pool  # type: ignore[attr-defined]
    kind = _Whole if isinstance(pool, redis.ConnectionPool) else _AsyncWhole
    if not isinstance(pool, kind):
        pool.__class__ = type(kind.__name__, (kind, type(pool)), {})
        pool.reset()
        if hasattr(redis, "DriverInfo"):  # else each connection looks redis-py's version up on the disk: 1 ms
            pool.connection_kwargs.setdefault("driver_info", redis.DriverInfo())
    return client


def _is_broken_off() -> bool:
    # What redis-py raises itself, it raises when all is read, or has disconnected. Within an `except` block of the
    # program's own a call costs a new connection, no more.
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
        return _when_free(do, ends)
    finally:
        turns.put(None)


async def in_turn_async(client: Any, do: Callable[[], Awaitable[T]]) -> T:
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        await client.initialize()  # once: in a crowd of first calls redis-py ends connections that it has just begun
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
