"""AsyncNotifier: `Notifier` for asyncio. The same checks, jobs and exchanges; only the waiting differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

import redis.asyncio

from notifier.errors import RedisUnusableError
from notifier.limiter import Hold
from notifier.limiter.requests import Timeout, ahead_us
from notifier.notification import Notification
from notifier.producer.base import Enqueue, Producer
from notifier.producer.cancel import Cancellation, each_once
from notifier.producer.events import Ended
from notifier.producer.exchanges import Status
from notifier.producer.feedback import Gone
from notifier.producer.permits import UserPermit, reached
from notifier.producer.users import AsyncUsers
from notifier.queue import backlogs
from notifier.queue.circuits import Held
from notifier.queue.history import Record
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.scripts.connection_wait import OfOneLoop
from notifier.scripts.records import Job
from notifier.store.aio import in_turn
from notifier.store.connection import redis_answers
from notifier.store.exchange import Exchange, Search, exchange_async
from notifier.store.partitions import connect_all_async

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")
MAX_CALLS: Final = 50  # under way at once, each on a connection of its own
FIRST_LOOK_S: Final = 1.0  # how long the first call waits for a look at the configuration, which then goes on alone


class AsyncNotifier(OfOneLoop, Producer):
    """Accepts notifications in an asyncio program. It has the methods of `Notifier`; you await them.

    It never blocks the event loop. Each call has a deadline: its `timeout=` (seconds, a timedelta or "2s"), or
    `redis.socket_timeout` of the configuration. After the deadline it raises RedisUnusableError. The notification may
    have been accepted all the same, so repeat the call with the same `job_id`.

    An AsyncNotifier belongs to one event loop. It opens no connection before the first call. At most 50 of its calls
    run at the same time; the others wait, within their deadline. To make channels, use a Notifier.
    """

    _takes = redis.asyncio.Redis
    _connect = staticmethod(connect_all_async)
    _do_all = staticmethod(asyncio.gather)

    def __init__(self, client: redis.asyncio.Redis, settings: Settings) -> None:
        """`from_config` builds one from the YAML."""
        super().__init__(client, settings)
        self._timeout = settings.redis.socket_timeout_us / 1e6
        self._slots = asyncio.Semaphore(MAX_CALLS)

    @property
    def users(self) -> AsyncUsers:
        return AsyncUsers(partial(self._within, None, self._prefer), self._preferences, self._edits)

    async def reload(self) -> None:
        """See `Notifier.reload`. A thread reads, so that the event loop goes on."""
        await asyncio.to_thread(self._file().reload)

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        self._is_used_here()
        if self._live is not None:
            self._live.close()
        for at in self._partitions:
            await at.client.aclose()
        self._leave()

    def _leave(self, client: Any = None) -> None:
        super()._leave(client)
        self._slots = asyncio.Semaphore(MAX_CALLS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def check(self, notification: Notification) -> None:
        """See `Notifier.check`. It does not ask Redis, and is not awaited."""
        self._builder.build(notification)

    async def send(self, notification: Notification, *, job_id: str | None = None, timeout: Timeout = None) -> str:
        spent = await self._follow(timeout)
        with self._builder.span("send", notification) as trace:
            return (await self._enqueued([self._builder.build(notification, job_id, trace)], timeout, spent))[0]

    async def send_many(
        self,
        notifications: Iterable[Notification] | AsyncIterable[Notification],
        *,
        job_ids: Iterable[str] | None = None,
        on_accepted: Callable[[Sequence[str]], object] | None = None,
        timeout: Timeout = None,
    ) -> int:
        """See `Notifier.send_many`.

        on_accepted: may be a coroutine function.
        timeout: for each hundred.
        """
        await self._follow(timeout)
        enqueue = partial(self._enqueued, timeout=timeout)
        return await self._send_many(notifications, job_ids, on_accepted, enqueue)

    async def acquire(
        self, user: str, category: str = DEFAULT_CATEGORY, *, timeout: Timeout = None
    ) -> UserPermit | Hold:
        with reached():
            return await self._within(timeout, self._acquire, user, category)

    async def refund(self, permit: UserPermit, *, timeout: Timeout = None) -> bool:
        with reached():
            return await self._within(timeout, self._of, permit.user, self._exchanges.refund(permit))

    @overload
    async def cancel(self, job_id: str, *, timeout: Timeout = None) -> backlogs.Cancelled: ...
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
    ) -> backlogs.Cancelled | Cancellation:
        return await self._within(timeout, self._cancel, job_id, user, category, collapse_id, tag)

    async def forget(self, user: str, *, hard: bool = False, timeout: Timeout = None) -> Cancellation:
        return await self._within(timeout, self._forget, user, hard)

    async def cancel_many(self, job_ids: Iterable[str], *, timeout: Timeout = None) -> Cancellation:
        ids = each_once(job_ids)
        return Cancellation.of(ids, await self._within(timeout, self._cancelled, ids))

    def feedback(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> AsyncIterator[Gone]:
        """See `Notifier.feedback`: ``async for gone in notifier.feedback(): …``. Each look has its own deadline."""
        return self._search(partial(self._exchanges.feedback, group, consumer, lease=lease), follow=follow)

    def events(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> AsyncIterator[Ended]:
        """See `Notifier.events`: ``async for ended in notifier.events(): …``. Each look has its own deadline."""

        def find(*, follow: bool) -> Search[Ended]:
            self._builder.check_events()
            return self._exchanges.events(group, consumer, follow=follow, lease=lease)

        return self._search(find, follow=follow)

    async def routes(self, *, timeout: Timeout = None) -> list[Held]:
        return await self._within(timeout, self._routes)

    async def status(self, job_id: str, user: str | None = None, *, timeout: Timeout = None) -> Status | None:
        return await self._within(timeout, self._status, job_id, user)

    async def history(self, user: str, since: timedelta | None = None, *, timeout: Timeout = None) -> list[Record]:
        return await self._within(timeout, self._of, *self._history(user, since))

    async def _within(
        self, timeout: Timeout, do: Callable[..., Coroutine[Any, Any, T]], *args: Any, spent: float = 0.0
    ) -> T:
        spent += await self._follow(timeout)
        within = self._seconds(timeout)
        try:
            return await in_turn(self._slots, do(*args), within - spent)
        except TimeoutError:
            raise RedisUnusableError(f"Redis does not answer within {within:g} s") from None

    async def _follow(self, timeout: Timeout) -> float:
        self._is_used_here()
        within = self._seconds(timeout)
        if not self._follows or self._live is None or self._live.has_begun:
            return 0.0
        begun = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(FIRST_LOOK_S, within / 2)):
                await self._live.begin_async()
        return time.monotonic() - begun

    def _seconds(self, timeout: Timeout) -> float:
        """A timeout in seconds. Raises TypeError or ValueError if it is not a timeout."""
        return self._timeout if timeout is None else ahead_us(timeout) / 1e6

    async def _apart(self, client: Any, steps: Exchange[T]) -> T:
        made = redis.asyncio.Redis(connection_pool=client.connection_pool, single_connection_client=True)
        with redis_answers():
            async with made as one:
                return await exchange_async(one, steps)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _beside(self, enqueue: Enqueue) -> AbstractContextManager[Callable[[Sequence[Job]], Any]]:
        return nullcontext(lambda jobs: asyncio.ensure_future(enqueue(jobs)))
