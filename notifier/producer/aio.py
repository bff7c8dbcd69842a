"""AsyncNotifier: `Notifier` for asyncio. The same checks, jobs and exchanges; only the waiting differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

import redis.asyncio

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held
from notifier.dispatch.history import Record
from notifier.errors import LimiterUnreachableError, OverloadedError, RedisUnusableError
from notifier.limiter import Hold, Permit
from notifier.limiter.aio_users import AsyncUserLimiter, Timeout, seconds
from notifier.notification import Notification
from notifier.producer.aio_users import AsyncUsers
from notifier.producer.base import Opened, Producer, checked
from notifier.producer.cancel import Cancellation
from notifier.producer.channels import AsyncChannels
from notifier.producer.events import Ended
from notifier.producer.exchanges import Status
from notifier.producer.feedback import Gone
from notifier.producer.jobs import Bulk
from notifier.producer.users import Edit
from notifier.rules.policy import DEFAULT_CATEGORY
from notifier.rules.preferences import Preferences
from notifier.shards.limiter import AsyncShardedLimiter
from notifier.shards.map import Map
from notifier.store.aio import Calls, connect_async
from notifier.store.exchange import Exchange, exchange_async, search_async

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")
MAX_CALLS: Final = 50  # under way at once, each on a connection of its own
FIRST_LOOK_S: Final = 1.0  # at what is published; after that a thread looks
MISSING: Final = object()


class AsyncNotifier(Producer):
    """Accepts notifications in an asyncio program; every method is that of `Notifier`, awaited.

    It never blocks the event loop: while it waits for Redis, all else goes on. Each call ends by its deadline:
    `timeout=`, in seconds or as a timedelta, else `redis.socket_timeout` of the configuration. Then it raises
    RedisUnusableError; the notification may have been accepted all the same, so repeat it under the same `job_id`.
    With `redis.shards`, each shard that a call asks has its part of that time, and ShardsUnusableError names those
    that did not answer. One AsyncNotifier serves one event loop. It opens no connection before the first call, and has
    at most 50 calls under way at once; the others wait, within their deadline.
    """

    def __init__(self, client: redis.asyncio.Redis | Mapping[str, redis.asyncio.Redis], settings: Settings) -> None:
        """`from_config` builds one from the YAML. client: it must answer in bytes; with `redis.shards`, by name."""
        super().__init__(client, settings)
        self._timeout = settings.redis.socket_timeout_us / 1e6
        self._calls = Calls(MAX_CALLS)
        self.limiter = self._limiter(settings)

    def _limiter(self, settings: Settings) -> AsyncUserLimiter:
        both: dict[str, Any] = {"timeout": self._timeout, "calls": self._calls}
        if isinstance(self._redis, Mapping):
            return AsyncShardedLimiter(Map.of(settings.redis), self._redis, **both)
        return AsyncUserLimiter(self._redis, **both)

    @property
    def users(self) -> AsyncUsers:
        """See `Notifier.users`."""
        return AsyncUsers(self._prefer, self._preferences, self._edits)

    @property
    def channels(self) -> AsyncChannels:
        """See `Notifier.channels`."""
        return AsyncChannels(lambda: self._settings, self.send)

    async def reload(self) -> None:
        """See `Notifier.reload`. A thread reads, so that the event loop goes on."""
        await asyncio.to_thread(self._file().reload)

    async def _follow(self, timeout: Timeout) -> float:
        """Begin to follow the configuration with the first call; returns how long that took, in seconds."""
        if not self._follows or self._live is None or self._live.has_begun:
            return 0.0
        begun = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(FIRST_LOOK_S, seconds(timeout, self._timeout) / 2)):
                await asyncio.to_thread(self._live.begin)
        return time.monotonic() - begun

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        if self._live is not None:
            self._live.close()
        for client in self._clients:
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def check(self, notification: Notification) -> None:
        """See `Notifier.check`; it asks nobody, and is not awaited."""
        self._builder.build(notification)

    async def send(self, notification: Notification, *, job_id: str | None = None, timeout: Timeout = None) -> str:
        """See `Notifier.send`."""
        spent = await self._follow(timeout)
        with self._builder.span("send", notification) as trace:
            jobs = [self._builder.build(notification, job_id, trace)]
            return (await self._enqueue(self._exchanges.enqueue(jobs), timeout, spent))[0]

    async def send_many(
        self,
        notifications: Iterable[Notification] | AsyncIterable[Notification],
        *,
        job_ids: Iterable[str] | None = None,
        on_accepted: Callable[[Sequence[str]], object] | None = None,
        timeout: Timeout = None,
    ) -> int:
        """See `Notifier.send_many`. timeout: of each hundred, of as many hundreds as there are shards."""
        await self._follow(timeout)
        bulk = Bulk(self._builder, self._exchanges.chunk, on_accepted)
        sending = self._exchanges.sending()
        ids = None if job_ids is None else iter(job_ids)

        async def flush() -> bool:
            if jobs := bulk.take():
                try:
                    bulk.accepted(await self._enqueue(sending.enqueue(jobs), timeout))
                except OverloadedError as error:
                    return bulk.refused(error)
            return True

        with checked(sending):
            try:
                async for notification in _each(notifications):
                    if bulk.add(notification, _next_id(ids)) and not await flush():
                        break
                else:
                    if ids is not None and next(ids, MISSING) is not MISSING:
                        raise ValueError("job_ids has more entries than there are notifications")
            finally:
                await flush()
                bulk.check()
        return bulk.tried

    async def acquire(self, user: str, category: str = DEFAULT_CATEGORY, *, timeout: Timeout = None) -> Permit | Hold:
        """See `Notifier.acquire`."""
        spent = await self._follow(timeout)
        name = self._builder.category(category).name
        try:
            return await self._run(self._exchanges.acquire(user, name), timeout, spent)
        except RedisUnusableError as error:
            raise LimiterUnreachableError(str(error)) from error

    @overload
    async def cancel(self, job_id: str, *, timeout: Timeout = None) -> calls.Cancelled: ...
    @overload
    async def cancel(
        self,
        *,
        user: str,
        category: str | None = None,
        collapse_id: str | None = None,
        tag: str | None = None,
        timeout: Timeout = None,
    ) -> Cancellation: ...
    async def cancel(
        self,
        job_id: str | None = None,
        *,
        user: str | None = None,
        category: str | None = None,
        collapse_id: str | None = None,
        tag: str | None = None,
        timeout: Timeout = None,
    ) -> calls.Cancelled | Cancellation:
        """See `Notifier.cancel`."""
        return await self._run(self._cancel(job_id, user, category, collapse_id, tag), timeout)

    async def forget(self, user: str, *, hard: bool = False, timeout: Timeout = None) -> Cancellation:
        """See `Notifier.forget`."""
        return await self._run(self._forget(user, hard=hard), timeout)

    async def cancel_many(self, job_ids: Iterable[str], *, timeout: Timeout = None) -> Cancellation:
        """See `Notifier.cancel_many`."""
        ids = list(dict.fromkeys(job_ids))
        return Cancellation.of(ids, await self._run(self._exchanges.cancel(ids), timeout))

    _connect = staticmethod(connect_async)

    async def _prefer(self, user: str, edit: Edit, who: str, timeout: Timeout) -> Preferences:
        return await self._run(self._exchanges.prefer(user, edit, who), timeout)

    def _preferences(self) -> AsyncIterator[tuple[str, Preferences]]:
        return search_async(self._redis, self._exchanges.preferences())

    def feedback(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> AsyncIterator[Gone]:
        """See `Notifier.feedback`: ``async for gone in notifier.feedback(): …``. Each look has its own deadline."""
        return search_async(self._redis, self._exchanges.feedback(group, consumer, follow=follow, lease=lease))

    def events(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> AsyncIterator[Ended]:
        """See `Notifier.events`: ``async for ended in notifier.events(): …``. Each look has its own deadline."""
        self._builder.check_events()
        return search_async(self._redis, self._exchanges.events(group, consumer, follow=follow, lease=lease))

    async def routes(self, *, timeout: Timeout = None) -> list[Held]:
        """See `Notifier.routes`."""
        return await self._run(self._exchanges.routes(), timeout)

    async def status(self, job_id: str, user: str | None = None, *, timeout: Timeout = None) -> Status | None:
        """See `Notifier.status`."""
        return await self._run(self._exchanges.status(job_id, user), timeout)

    async def history(self, user: str, since: timedelta | None = None, *, timeout: Timeout = None) -> list[Record]:
        """See `Notifier.history`."""
        return await self._run(self._exchanges.history(user, since), timeout)

    async def _enqueue(self, steps: Exchange[list[str]], timeout: Timeout, spent: float = 0.0) -> list[str]:
        return await self._run(steps, timeout, spent, on_one_connection=self._exchanges.waits_for_replicas)

    async def _run(
        self, steps: Exchange[T], timeout: Timeout, spent: float = 0.0, *, on_one_connection: bool = False
    ) -> T:
        within = seconds(timeout, self._timeout)
        try:
            ask = self._on_one_connection if on_one_connection else partial(exchange_async, self._redis)
            return await self._calls.run(ask(steps, within - spent), within - spent)
        except TimeoutError:
            raise RedisUnusableError(f"Redis does not answer within {within:g} s") from None

    async def _on_one_connection(self, steps: Exchange[T], within: float) -> T:
        async with AsyncExitStack() as stack:

            def one(client: redis.asyncio.Redis) -> redis.asyncio.Redis:
                made = redis.asyncio.Redis(connection_pool=client.connection_pool, single_connection_client=True)
                stack.push_async_callback(made.aclose)
                return made

            clients = Opened(self._redis, one) if isinstance(self._redis, Mapping) else one(self._redis)
            return await exchange_async(clients, steps, within)


async def _each(notifications: Iterable[Notification] | AsyncIterable[Notification]) -> AsyncIterator[Notification]:
    if isinstance(notifications, AsyncIterable):
        async for notification in notifications:
            yield notification
    else:
        for notification in notifications:
            yield notification


def _next_id(ids: Iterator[str] | None) -> str | None:
    if ids is None:
        return None
    try:
        return next(ids)
    except StopIteration:
        raise ValueError("job_ids has fewer entries than there are notifications") from None
