"""AsyncNotifier: `Notifier` for asyncio. The same checks, jobs and exchanges; only the waiting differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

import redis.asyncio

from notifier.errors import NotifierError, RedisUnusableError
from notifier.limiter import Hold
from notifier.limiter.requests import Timeout, ahead_us
from notifier.notification import Notification
from notifier.notification.notification import check_user
from notifier.producer.base import Producer
from notifier.producer.cancel import Cancellation, each_once
from notifier.producer.events import Ended
from notifier.producer.exchanges import Status
from notifier.producer.feedback import Gone
from notifier.producer.jobs import Bulk, check_no_more, ids_of, next_id
from notifier.producer.permits import UserPermit, reached
from notifier.producer.routing import FOLLOW_S, Split, first_known
from notifier.producer.users import Asked, AsyncUsers
from notifier.queue import backlogs, calls
from notifier.queue.circuits import Held, by_route
from notifier.queue.history import Record
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.rules.preferences import Preferences
from notifier.scripts.keys import under
from notifier.store.aio import in_turn
from notifier.store.exchange import Exchange, Search, exchange_async, nothing
from notifier.store.partitions import Partition, connect_all_async, search_at_async
from notifier.store.pipelining import together_async, whole

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")
MAX_CALLS: Final = 50  # under way at once, each on a connection of its own
FIRST_LOOK_S: Final = 1.0  # at what is published; after that a thread looks


class AsyncNotifier(Producer):
    """Accepts notifications in an asyncio program; every method is that of `Notifier`, awaited.

    It never blocks the event loop: while it waits for Redis, all else goes on. Each call ends by its deadline: its
    `timeout=` (seconds, a timedelta or "2s"), or `redis.socket_timeout` of the configuration. Then it raises
    RedisUnusableError; the notification may have been accepted all the same, so repeat it under the same `job_id`.
    One AsyncNotifier serves one event loop. It opens no connection before the first call, and has at most 50 calls
    under way at once; the others wait, within their deadline. Channels are made by a Notifier.
    """

    _takes = redis.asyncio.Redis

    def __init__(self, client: redis.asyncio.Redis, settings: Settings) -> None:
        """`from_config` builds one from the YAML."""
        super().__init__(client, settings)
        self._timeout = settings.redis.socket_timeout_us / 1e6
        self._slots = asyncio.Semaphore(MAX_CALLS)

    @property
    def users(self) -> AsyncUsers:
        """See `Notifier.users`."""
        return AsyncUsers(self._prefer, self._preferences, self._edits)

    async def reload(self) -> None:
        """See `Notifier.reload`. A thread reads, so that the event loop goes on."""
        await asyncio.to_thread(self._file().reload)

    async def _follow(self, timeout: Timeout) -> float:
        """Begin to follow the configuration, before a call goes by it or asks Redis; returns how many s that took.

        Here a time-out is checked: what does the call, and would have to be closed, is not made yet.
        """
        within = self._within(timeout)
        if not self._follows or self._live is None or self._live.has_begun:
            return 0.0
        begun = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(FIRST_LOOK_S, within / 2)):
                await self._live.begin_async()
        return time.monotonic() - begun

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        if self._live is not None:
            self._live.close()
        for at in self._partitions:
            await at.client.aclose()

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
            return (await self._enqueue(jobs, timeout, spent))[0]

    async def send_many(
        self,
        notifications: Iterable[Notification] | AsyncIterable[Notification],
        *,
        job_ids: Iterable[str] | None = None,
        on_accepted: Callable[[Sequence[str]], object] | None = None,
        timeout: Timeout = None,
    ) -> int:
        """See `Notifier.send_many`. on_accepted: may be a coroutine function. timeout: of each hundred."""
        await self._follow(timeout)
        enqueue = partial(self._enqueue, timeout=timeout)
        bulk = Bulk(self._builder, self._chunk, enqueue, lambda jobs: asyncio.ensure_future(enqueue(jobs)), on_accepted)
        ids = ids_of(job_ids)
        try:
            async for notification in _each(notifications):
                if bulk.add(notification, next_id(ids)):
                    if not await bulk.go_on():
                        break
                    await asyncio.sleep(0)  # what has begun is written now
            else:
                check_no_more(ids)
        except BaseException as error:
            await bulk.finish(error)
            raise
        await bulk.finish()
        return bulk.tried

    async def acquire(
        self, user: str, category: str = DEFAULT_CATEGORY, *, timeout: Timeout = None
    ) -> UserPermit | Hold:
        """See `Notifier.acquire`."""
        user, spent = check_user(user), await self._follow(timeout)
        name = self._builder.category(category).name
        with reached():
            return await self._of(user, self._exchanges.acquire(user, name), timeout, spent)

    async def refund(self, permit: UserPermit, *, timeout: Timeout = None) -> bool:
        """See `Notifier.refund`."""
        with reached():
            return await self._of(permit.user, self._exchanges.refund(permit), timeout)

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
        """See `Notifier.cancel`."""
        if job_id is not None and user is category is collapse_id is tag is None:
            return (await self._cancelled([job_id], timeout))[0]
        return await self._of(*self._cancel(job_id, user, category, collapse_id, tag), timeout)

    async def forget(self, user: str, *, hard: bool = False, timeout: Timeout = None) -> Cancellation:
        """See `Notifier.forget`."""
        user = check_user(user)
        asked = [(at, self._exchanges.forget(user, hard=hard)) for at in self._partitions]
        return whole(self._partitions, await self._together(asked, timeout))[self._partitions.of_user(user).number]

    async def cancel_many(self, job_ids: Iterable[str], *, timeout: Timeout = None) -> Cancellation:
        """See `Notifier.cancel_many`."""
        ids = each_once(job_ids)
        return Cancellation.of(ids, await self._cancelled(ids, timeout))

    _connect = staticmethod(connect_all_async)

    async def _prefer(self, asked: Asked, who: str) -> Preferences:
        spent = await self._follow(None)
        user, edit = asked()
        user = check_user(user)
        return await self._of(user, self._exchanges.prefer(user, edit, who), None, spent)

    def _preferences(self) -> AsyncIterator[tuple[str, Preferences]]:
        return self._search(lambda **_: self._exchanges.preferences())

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
        """See `Notifier.routes`."""
        if len(self._partitions) == 1:
            return await self._run(self._partitions[0], self._exchanges.routes(), timeout)
        asked = [(at, self._exchanges.routes()) for at in self._partitions]
        return by_route(whole(self._partitions, await self._together(asked, timeout)))

    async def status(self, job_id: str, user: str | None = None, *, timeout: Timeout = None) -> Status | None:
        """See `Notifier.status`."""
        asked = self._status(job_id, user)
        return first_known([at for at, _ in asked], await self._together(asked, timeout))

    async def history(self, user: str, since: timedelta | None = None, *, timeout: Timeout = None) -> list[Record]:
        """See `Notifier.history`."""
        return await self._of(*self._history(user, since), timeout)

    async def _search(self, find: Callable[..., Search[T]], *, follow: bool = False) -> AsyncIterator[T]:
        await self._follow(None)
        several = len(self._partitions) > 1
        while True:
            found_any, ended = False, list[RedisUnusableError | None]()
            for at in self._partitions:
                try:
                    async for each in search_at_async(at, partial(find, follow=follow and not several)):
                        found_any = True
                        yield each
                    ended.append(None)
                except RedisUnusableError as error:
                    ended.append(error)
            if not (several and follow) or all(ended):
                whole(self._partitions, ended)
                return
            if not found_any:
                await asyncio.sleep(FOLLOW_S)

    async def _enqueue(self, jobs: Sequence[calls.Job], timeout: Timeout, spent: float = 0.0) -> list[str]:
        if (first := self._unagreed()) is not None:
            with suppress(RedisUnusableError):
                await self._run(first, nothing(), timeout)
            self._asked_first = True
        split = self._split(jobs) if len(self._partitions) > 1 else Split([self._partitions] * len(jobs))
        asked = split.ask(jobs, self._exchanges.enqueue)
        if len(asked) > 1 and not self._exchanges.waits_for_replicas:
            return split.answers(await self._together(asked, timeout, spent))
        one = self._exchanges.waits_for_replicas
        run = partial(self._run, timeout=timeout, spent=spent, on_one_connection=one)
        return split.answers(await asyncio.gather(*[self._ended(partial(run, *each)) for each in asked]))

    async def _ended(self, ask: Callable[[], Awaitable[T]]) -> T | NotifierError:
        try:
            return await ask()
        except NotifierError as error:
            return error

    async def _of(self, user: str, steps: Exchange[T], timeout: Timeout, spent: float = 0.0) -> T:
        return await self._run(self._partitions.of_user(user), steps, timeout, spent)

    async def _cancelled(self, job_ids: Sequence[str], timeout: Timeout) -> list[backlogs.Cancelled]:
        split = Split(map(self._where, job_ids))
        asked = split.ask(job_ids, self._exchanges.cancel)
        return split.answers(await self._together(asked, timeout), "unknown")

    async def _together(
        self, asked: Sequence[tuple[Partition, Exchange[T]]], timeout: Timeout, spent: float = 0.0
    ) -> list[T | NotifierError]:
        spent += await self._follow(timeout)
        checked = [(at, at.checked(steps)) for at, steps in asked]
        return await self._in_time(together_async(checked), timeout, spent)

    async def _run(
        self,
        at: Partition,
        steps: Exchange[T],
        timeout: Timeout,
        spent: float = 0.0,
        *,
        on_one_connection: bool = False,
    ) -> T:
        spent += await self._follow(timeout)
        steps = at.checked(steps)
        with under(at.prefixes):
            ask = _on_one_connection(at.client, steps) if on_one_connection else exchange_async(at.client, steps)
            return await self._in_time(ask, timeout, spent)

    def _within(self, timeout: Timeout) -> float:
        """A time-out in seconds. Raises TypeError or ValueError for what is none."""
        return self._timeout if timeout is None else ahead_us(timeout) / 1e6

    async def _in_time(self, ask: Coroutine[Any, Any, T], timeout: Timeout, spent: float) -> T:
        within = self._within(timeout)
        try:
            return await in_turn(self._slots, ask, within - spent)
        except TimeoutError:
            raise RedisUnusableError(f"Redis does not answer within {within:g} s") from None


async def _on_one_connection(client: redis.asyncio.Redis, steps: Exchange[T]) -> T:
    async with redis.asyncio.Redis(connection_pool=client.connection_pool, single_connection_client=True) as one:
        return await exchange_async(one, steps)


async def _each(notifications: Iterable[Notification] | AsyncIterable[Notification]) -> AsyncIterator[Notification]:
    if isinstance(notifications, AsyncIterable):
        async for notification in notifications:
            yield notification
    else:
        for notification in notifications:
            yield notification
