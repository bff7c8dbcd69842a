"""Exchanges with Redis, written once for both kinds of client: generators that yield steps and receive replies.

The generator decides; a runner does the input and output: `exchange` on a `redis.Redis`, `exchange_async` on a
`redis.asyncio.Redis`. A search finds its items one by one; `partitions.search_at` and `search_at_async` run it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier.scripts.loader import Call, finished, run_async, settled
from notifier.store.cluster import OVERDUE
from notifier.store.connection import unusable

T = TypeVar("T")

LOST: Final = (RedisConnectionError, RedisTimeoutError)


@dataclass(frozen=True, slots=True)
class Commands:
    """Some commands in one round trip; the reply is the list of their replies. queue: puts them into a pipeline.

    If no answer comes, they are sent once more, as a call is, because a kept connection may have been closed.
    """

    queue: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Once:
    """A step on the client itself, so on its own connection if it has only one. It is never sent twice.

    If its answer were lost, a repeat would take or count again.
    """

    ask: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """Not a step: an item that a search has found, for the loop that iterates over it."""

    value: T


@dataclass(frozen=True, slots=True)
class _End:
    value: Any


Step = Call[Any] | Commands | Once
Exchange = Generator[Step, Any, T]
Search = Generator[Step | Item[T], Any, None]


def nothing() -> Exchange[None]:
    yield from ()


def exchange(redis: Any, steps: Exchange[T]) -> T:
    """Run an exchange on a client, or on one connection of it. Raises RedisUnusableError where Redis fails."""
    return finished(exchange_async(redis, steps))


async def exchange_async(redis: Any, steps: Exchange[T]) -> T:
    with closing(steps):
        result: T = (await go_on(redis, steps)).value
    return result


def iterate(found: AsyncGenerator[T]) -> Iterator[T]:
    """Iterate over an async generator whose client blocks: it never waits, see `finished`."""
    try:
        while True:
            try:
                one = finished(anext(found))
            except StopAsyncIteration:
                return
            yield one
    finally:
        finished(found.aclose())


async def go_on(redis: Any, steps: Generator[Any, Any, Any]) -> Item[Any] | _End:
    """Run steps until a search finds an item, or all steps are done."""
    reply: Any = None
    failed: RedisError | None = None
    while True:
        try:
            step = steps.send(reply) if failed is None else steps.throw(failed)
        except StopIteration as end:
            return _End(end.value)
        except RedisError as error:
            raise unusable(error) from error
        if isinstance(step, Item):
            return step
        failed = None
        try:
            reply = await answer(redis, step)
        except RedisError as error:
            failed = error


def may_repeat(step: Step) -> bool:
    """Whether a step may be sent again: scripts are idempotent by job id, and `Once` is not."""
    return not isinstance(step, Once)


async def answer(redis: Any, step: Step) -> Any:
    """The reply to a step, on either kind of client. After a lost answer, a step that may be repeated is sent again."""
    try:
        return await _once(redis, step)
    except LOST:
        if not may_repeat(step):
            raise
        return await _once(redis, step)


async def _once(redis: Any, step: Step) -> Any:
    if isinstance(step, Call):
        return await run_async(redis, step)
    if isinstance(step, Once):
        return await settled(step.ask(redis))
    pipe = redis.pipeline(transaction=False)  # `execute` gives its connection back
    step.queue(pipe)
    return await settled(pipe.execute())


async def in_time(call: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of a call. Raises TimeoutError if the call takes longer.

    The call runs in a task of its own: redis-py may lose a cancellation that comes while it connects (seen with
    8.1), and then goes on until its own timeouts. The caller's deadline holds all the same.
    """
    task = asyncio.create_task(call)
    try:
        await asyncio.wait((task,), timeout=max(0.0, seconds))
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel(OVERDUE)
            task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # read it, or asyncio logs that nobody did
