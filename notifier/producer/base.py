"""The common part of Notifier and AsyncNotifier: how they are made, what they follow, and how they ask Redis.

The calls are written once, as coroutines. AsyncNotifier awaits them. On a Notifier's clients they never wait, so
`finished` returns their results.
"""

from __future__ import annotations

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from notifier.errors import (
    InvalidNotificationError,
    InvalidPreferenceError,
    NotifierError,
    RedisUnusableError,
    SettingsError,
)
from notifier.limiter import Hold
from notifier.limiter.requests import Timeout
from notifier.notification import Notification
from notifier.notification.notification import check_user
from notifier.producer.cancel import NEITHER, Cancellation, check_job_id, each_of, kind_of
from notifier.producer.exchanges import CHUNK, Exchanges, Status
from notifier.producer.jobs import Bulk, JobBuilder
from notifier.producer.permits import UserPermit
from notifier.producer.routing import FOLLOW_S, Split, ended, first_known
from notifier.producer.users import Asked, Edits
from notifier.queue import backlogs
from notifier.queue.circuits import Held, by_route
from notifier.queue.history import Record
from notifier.rules.policies import Policies
from notifier.rules.preferences import Preferences
from notifier.scripts.keys import under
from notifier.scripts.records import Job
from notifier.store.exchange import Exchange, Search, exchange_async, nothing
from notifier.store.partitions import Partition, Partitions, search_at_async
from notifier.store.pipelining import together_by, whole

if TYPE_CHECKING:
    from notifier.settings import Settings
    from notifier.settings.schema_redis import RedisSettings
    from notifier.store.live import LiveSettings

T = TypeVar("T")
Enqueue = Callable[[Sequence[Job]], Coroutine[Any, Any, list[str]]]
NO_MORE: Final[Any] = object()


class Producer:
    """A producer by its settings. A subclass adds how to wait for its kind of client."""

    _takes: ClassVar[type]
    _do_all: Callable[..., Awaitable[Sequence[Any]]]  # awaits several calls; returns their results

    def __init__(self, client: Any, settings: Settings) -> None:
        """See `from_config`. client: of `_takes`, or `Partitions`. Raises SettingsError, and TypeError for others."""
        if not isinstance(client, (self._takes, Partitions)) or _answers_otherwise(client):
            takes = f"{self._takes.__module__.removesuffix('.client')}.Redis(decode_responses=False, protocol=2)"
            raise TypeError(f"{type(self).__name__} takes a {takes}, or is made by from_config")
        self._partitions = Partitions.around(client)
        if len(self._partitions) != settings.redis.partitions:
            raise SettingsError(f"redis.partitions is {settings.redis.partitions}: make it by `of` or `from_config`")
        self._settings = settings
        self._asks = Exchanges(settings)
        self._jobs = JobBuilder(settings, self._partitions)
        self._live: LiveSettings | None = None
        self._asked_first = False
        self._follows = False

    @classmethod
    def from_config(
        cls, path: str | Path | None = None, environ: Mapping[str, str] = os.environ, *, follow: bool = True
    ) -> Self:
        """Make one from the YAML at `path`, at `NOTIFIER_CONFIG`, or at config/notifier.yaml.

        follow: from the first call on, a thread watches the file and the rates that `notifier config apply` publishes.
        Changes hold within two seconds; the section redis is not read again.

        Raises SettingsError if the configuration cannot be used.
        """
        from notifier.store.live import LiveSettings  # noqa: PLC0415 - a caller with settings needs no YAML, no pydantic

        live = LiveSettings(path, environ)
        made = cls(cls._connect(live.settings.redis), live.settings)
        live.follow(made._use)
        made._live, made._follows = live, follow
        return made

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Make one from these settings."""
        return cls(cls._connect(settings.redis), settings)

    @property
    def policies(self) -> Policies:
        """The rules of the configuration, by user and category."""
        return self._builder.policies

    @property
    def _builder(self) -> JobBuilder:
        self._begin()
        return self._jobs

    @property
    def _exchanges(self) -> Exchanges:
        self._begin()
        return self._asks

    def _begin(self) -> None:
        """Begin to follow the configuration, if that has not begun. Every call uses one of the two properties above."""

    @staticmethod
    def _connect(config: RedisSettings) -> Any:
        raise NotImplementedError

    @property
    def _edits(self) -> Edits:
        return Edits(lambda: self.policies)

    def _file(self) -> LiveSettings:
        if self._live is None:
            whose = type(self).__name__
            raise SettingsError(f"this {whose} was made without a file; only one of from_config can reload")
        return self._live

    def _use(self, settings: Settings) -> None:
        self._settings = settings
        self._asks.use(settings)
        self._jobs.use(settings)

    async def _acquire(self, user: str, category: str) -> UserPermit | Hold:
        user = check_user(user)
        return await self._of(user, self._exchanges.acquire(user, self._builder.category(category).name))

    async def _cancel(
        self, job_id: str | None, user: str | None, category: str | None, collapse_id: str | None, tag: str | None
    ) -> backlogs.Cancelled | Cancellation:
        if job_id is not None and user is category is collapse_id is tag is None:
            return (await self._cancelled([job_id]))[0]
        if job_id is not None or user is None:
            raise TypeError(NEITHER)
        user = check_user(user)
        return await self._of(user, self._exchanges.cancel_of(user, kind_of(category, collapse_id, tag)))

    def _history(self, user: str, since: timedelta | None) -> tuple[str, Exchange[list[Record]]]:
        """Build the call of `history`. Raises InvalidNotificationError."""
        if since is not None and not isinstance(since, timedelta):
            raise InvalidNotificationError("since", f"must be a timedelta, is {type(since).__name__}")
        user = check_user(user)
        return user, self._exchanges.history(user, since)

    async def _send_many(
        self,
        notifications: Iterable[Notification] | AsyncIterable[Notification],
        job_ids: Iterable[str] | None,
        on_accepted: Callable[[Sequence[str]], object] | None,
        enqueue: Enqueue,
    ) -> int:
        with self._beside(enqueue) as begin:
            bulk = Bulk(self._builder, CHUNK * len(self._partitions), enqueue, begin, on_accepted)
            try:
                async for notification, job_id in _with_ids(notifications, job_ids):
                    if bulk.add(notification, job_id):
                        if not await bulk.go_on():
                            break
                        await self._pause(0)  # so that the chunk that has begun is written now
            except BaseException as error:
                await bulk.finish(error)
                raise
            await bulk.finish()
        return bulk.tried

    async def _enqueued(self, jobs: Sequence[Job], timeout: Timeout = None, spent: float = 0.0) -> list[str]:
        if not self._asked_first:  # check the number of partitions before anything is written
            with suppress(RedisUnusableError):
                await self._within(timeout, self._run, self._partitions[0], nothing())
            self._asked_first = True
        return await self._within(timeout, self._enqueue, jobs, spent=spent)

    async def _enqueue(self, jobs: Sequence[Job]) -> list[str]:
        apart = self._exchanges.waits_for_replicas  # WAIT counts what its own connection wrote
        if len(self._partitions) == 1:
            return await self._run(self._partitions[0], self._exchanges.enqueue(jobs), apart=apart)
        split = Split([self._partitions.of_user(job.user)] for job in jobs)
        asked = split.ask(jobs, self._exchanges.enqueue)
        if not apart:
            return split.answers(await self._together(asked))
        return split.answers(await self._do_all(*[ended(self._run(*each, apart=True)) for each in asked]))

    async def _cancelled(self, job_ids: Sequence[str]) -> list[backlogs.Cancelled]:
        split = Split(map(self._where, job_ids))
        return split.answers(await self._together(split.ask(job_ids, self._exchanges.cancel)), "unknown")

    async def _forget(self, user: str, hard: bool) -> Cancellation:
        user = check_user(user)
        # A pause of the user is in all partitions, and the log of what operators did in any.
        asked = [(at, self._exchanges.forget(user, hard=hard)) for at in self._partitions]
        return whole(self._partitions, await self._together(asked))[self._partitions.of_user(user).number]

    async def _routes(self) -> list[Held]:
        asked = [(at, self._exchanges.routes()) for at in self._partitions]
        return by_route(whole(self._partitions, await self._together(asked)))

    async def _status(self, job_id: str, user: str | None) -> Status | None:
        where = self._where(job_id)
        if user is not None:
            user = check_user(user)
            where = [self._partitions.of_user(user)]
        return first_known(where, await self._together([(at, self._exchanges.status(job_id, user)) for at in where]))

    def _where(self, job_id: str) -> Sequence[Partition]:
        return self._partitions.of_job(check_job_id(job_id))

    async def _prefer(self, asked: Asked, who: str) -> Preferences:
        user, edit = asked()
        user = check_user(user)
        if not isinstance(who, str):
            raise InvalidPreferenceError("who", f"must be text, is {type(who).__name__}")
        return await self._of(user, self._exchanges.prefer(user, edit, who))

    def _preferences(self) -> AsyncGenerator[tuple[str, Preferences]]:
        return self._search(lambda **_: self._exchanges.preferences())

    async def _search(self, find: Callable[..., Search[T]], *, follow: bool = False) -> AsyncGenerator[T]:
        """Search the partitions, one after the other. follow: again and again, without end.

        A search with an end raises at its end if a partition was away; one without end, only if all were.
        """
        await self._follow(None)
        several = len(self._partitions) > 1
        while True:
            found_any, errors = False, list[RedisUnusableError | None]()
            for at in self._partitions:
                try:
                    async for each in search_at_async(at, partial(find, follow=follow and not several)):
                        found_any = True
                        yield each
                    errors.append(None)
                except RedisUnusableError as error:
                    errors.append(error)
            if not (several and follow) or all(errors):
                whole(self._partitions, errors)
                return
            if not found_any:
                await self._pause(FOLLOW_S)

    async def _of(self, user: str, steps: Exchange[T]) -> T:
        return await self._run(self._partitions.of_user(user), steps)

    async def _together(self, asked: Sequence[tuple[Partition, Exchange[T]]]) -> list[T | NotifierError]:
        return await together_by(self._do_all, [(at, at.checked(steps)) for at, steps in asked])

    async def _run(self, at: Partition, steps: Exchange[T], *, apart: bool = False) -> T:
        """Run an exchange in a partition. apart: on a connection that no other call uses meanwhile."""
        with under(at.prefixes):
            return await (self._apart if apart else exchange_async)(at.client, at.checked(steps))

    async def _follow(self, timeout: Timeout) -> float:  # noqa: ARG002 - of AsyncNotifier
        """Begin to follow the configuration before a call uses it; return how many seconds that took."""
        return 0.0

    async def _within(
        self,
        timeout: Timeout,  # noqa: ARG002
        do: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        spent: float = 0.0,  # noqa: ARG002
    ) -> T:
        """Return the result of a call. timeout: its deadline; spent: seconds of it that are over; see AsyncNotifier."""
        return await do(*args)

    async def _apart(self, client: Any, steps: Exchange[T]) -> T:
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        raise NotImplementedError

    def _beside(self, enqueue: Enqueue) -> AbstractContextManager[Callable[[Sequence[Job]], Any]]:
        """Provide a function that begins to enqueue a chunk, and returns its future."""
        raise NotImplementedError


async def _with_ids(
    notifications: Iterable[Notification] | AsyncIterable[Notification], job_ids: Iterable[str] | None
) -> AsyncIterator[tuple[Notification, str | None]]:
    """Each with its job id; None is a random one. Raises ValueError if there are not as many ids as notifications."""
    ids = repeat(None) if job_ids is None else each_of(job_ids)
    async for notification in _each(notifications):
        if (job_id := next(ids, NO_MORE)) is NO_MORE:
            raise ValueError("job_ids has fewer entries than there are notifications")
        yield notification, job_id
    if job_ids is not None and next(ids, NO_MORE) is not NO_MORE:
        raise ValueError("job_ids has more entries than there are notifications")


async def _each(notifications: Iterable[Notification] | AsyncIterable[Notification]) -> AsyncIterator[Notification]:
    if isinstance(notifications, AsyncIterable):
        async for notification in notifications:
            yield notification
    else:
        for notification in notifications:
            yield notification


def _answers_otherwise(client: Any) -> bool:
    """Whether a client's replies have other types or shapes than this library reads, such as text in place of bytes."""
    options = {} if isinstance(client, Partitions) else client.connection_pool.connection_kwargs
    return bool(options.get("decode_responses") or str(options.get("protocol")) == "3")
