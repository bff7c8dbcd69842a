"""Notifier: the calls of a producer. It checks a notification, writes it as an RQ job, tells what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from inspect import iscoroutinefunction
from threading import Event
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from redis import Redis

from notifier.limiter import Hold
from notifier.notification import Notification
from notifier.producer.base import Enqueue, Producer
from notifier.producer.cancel import Cancellation, each_once
from notifier.producer.channels import Channels
from notifier.producer.events import Ended
from notifier.producer.exchanges import Status
from notifier.producer.feedback import Gone
from notifier.producer.permits import UserPermit, reached
from notifier.producer.users import Users
from notifier.queue import backlogs
from notifier.queue.circuits import Held
from notifier.queue.history import Record
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.scripts.loader import finished
from notifier.scripts.records import Job
from notifier.store.connection import redis_answers
from notifier.store.exchange import Exchange, exchange_async, iterate
from notifier.store.partitions import Partitions, connect_all
from notifier.store.pipelining import one_by_one

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")


class Notifier(Producer):
    """Accepts notifications. Threads may share one; it opens no connection before the first call.

    Every call waits for Redis and blocks its thread, usually for less than a millisecond. If Redis hangs, a call ends
    after at most twice `redis.socket_timeout` (5 s by default), because it is tried once more; `send_many` may take so
    long for each hundred. The first call may take two seconds more, because of `follow`. `feedback(follow=True)` waits
    for ever. In an asyncio program use AsyncNotifier.
    """

    _takes = Redis
    _connect = staticmethod(connect_all)
    _do_all = staticmethod(one_by_one)

    def __init__(self, redis: Redis | Partitions, settings: Settings) -> None:
        """`from_config` builds one from the YAML."""
        super().__init__(redis, settings)

    @property
    def users(self) -> Users:
        """Return the preferences of users, to read and to change."""
        return Users(
            lambda asked, who: finished(self._prefer(asked, who)), lambda: iterate(self._preferences()), self._edits
        )

    @property
    def channels(self) -> Channels:
        """Apple's broadcast channels."""
        return Channels(lambda: self._exchanges.settings)

    def reload(self) -> None:
        """Read the file and the published rates now. If they cannot be used, it raises, and nothing changes.

        Raises SettingsError, also if this was not made by `from_config`, and RedisUnusableError.
        """
        self._file().reload()

    def _begin(self) -> None:
        if self._follows and self._live is not None:
            self._live.begin()

    def close(self) -> None:
        """Close the connections to Redis."""
        if self._live is not None:
            self._live.close()
        self._partitions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, notification: Notification) -> None:
        """Raise InvalidNotificationError, as `send` would, without sending."""
        self._builder.build(notification)

    def send(self, notification: Notification, *, job_id: str | None = None) -> str:
        """Accept one notification; returns its job id. With a known `dedupe_key` it returns the id of the earlier one.

        job_id: your own id; without it, a random one. While Redis keeps a notification, its id is not accepted again.
        So if you do not know whether a call succeeded, repeat it with the same id.

        Raises InvalidNotificationError before anything is written; RedisUnusableError if Redis does not answer;
        OverloadedError if `max_waiting` is reached and the category's `overflow` makes no room. With
        `redis.wait_replicas` it raises NotReplicatedError if the notification is accepted but may be lost with the
        primary.
        """
        with self._builder.span("send", notification) as trace:
            return finished(self._enqueued([self._builder.build(notification, job_id, trace)]))[0]

    def send_many(
        self,
        notifications: Iterable[Notification],
        *,
        job_ids: Iterable[str] | None = None,
        on_accepted: Callable[[Sequence[str]], object] | None = None,
    ) -> int:
        """Accept any number, a hundred in each round trip; returns how many. It never has more than 200 in memory.

        A thread waits for Redis, while the next hundred is taken from the iterable and checked.

        job_ids: one for each notification, as for `send`.
        on_accepted: a function that is called with the job ids of each hundred, in order.

        Raises InvalidNotificationError with the position in the iterable, such as ``notifications[17].user``. Then all
        before this one were accepted, and none after it. The same holds if the iterable itself raises an error. Raises
        OverloadedError at the end, with the notifications that were refused; from the first of these on, `on_accepted`
        is not called.
        """
        if iscoroutinefunction(on_accepted):
            raise TypeError("on_accepted is a coroutine function: AsyncNotifier awaits one")
        return finished(self._send_many(iter(notifications), job_ids, on_accepted, self._enqueued))

    def acquire(self, user: str, category: str = DEFAULT_CATEGORY) -> UserPermit | Hold:
        """Ask for a permit to send this user something of a category yourself, by the rules in force.

        The permit counts like a notification. The user's own choices hold too, also mutes. Quiet hours, send hours and
        calendar windows follow the zone that the user chose, or else the zone of the configuration.

        Raises InvalidNotificationError for an unknown category, LimiterUnreachableError if Redis does not answer.
        """
        with reached():
            return finished(self._acquire(user, category))

    def refund(self, permit: UserPermit) -> bool:
        """Give back a permit of `acquire` because nothing reached the user. Waiting notifications may then go at once.

        Returns False if it does not count any more, or was given back before. Raises LimiterUnreachableError if Redis
        does not answer.
        """
        with reached():
            return finished(self._of(permit.user, self._exchanges.refund(permit)))

    @overload
    def cancel(self, job_id: str) -> backlogs.Cancelled: ...
    @overload
    def cancel(
        self, *, user: str, category: str | None = None, collapse_id: str | None = None, tag: str | None = None
    ) -> Cancellation: ...
    def cancel(
        self,
        job_id: str | None = None,
        *,
        user: str | None = None,
        category: str | None = None,
        collapse_id: str | None = None,
        tag: str | None = None,
    ) -> backlogs.Cancelled | Cancellation:
        """Cancel one notification, or all of a user that match, if no worker has taken them yet.

        With a job id it returns 'cancelled', or 'sending' or 'ended' if it is too late, or 'unknown'. If one device has
        received the notification and others would be tried again, they are not tried again: it counts as delivered, and
        this returns 'ended'.

        With `user` it cancels all notifications of this user that were accepted before this call and have the category,
        collapse id and tag that you give. It returns a Cancellation.

        Raises InvalidNotificationError for a value that no notification can have.
        """
        return finished(self._cancel(job_id, user, category, collapse_id, tag))

    def forget(self, user: str, *, hard: bool = False) -> Cancellation:
        """Cancel all that waits for a user, and delete the user's data in Redis; returns what was cancelled.

        The data are: preferences, history, ended notifications with their text and tokens, dedupe keys, a pause of the
        user, and entries about the user in the feeds of dead tokens and events and in the logs of changes. If a worker
        is sending a notification at that moment, it is too late, and its result is stored afterwards: call this again.
        The times of sends stay, under a hash of the user, until the limits do not need them.

        hard: delete these times too, so that the limits begin anew.
        """
        return finished(self._forget(user, hard))

    def cancel_many(self, job_ids: Iterable[str]) -> Cancellation:
        """Cancel notifications by their job ids: which were cancelled, which were too late, which are unknown."""
        ids = each_once(job_ids)
        return Cancellation.of(ids, finished(self._cancelled(ids)))

    def feedback(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> Iterator[Gone]:
        """Iterate over dead tokens: ``for gone in notifier.feedback(): …``.

        When the loop asks for the next token, the one before is acknowledged. If the body of the loop raises, or you
        leave the loop, the token comes again: at once to a consumer of the same name, and after `lease` to any other.
        So the body must take less than `lease`, and must allow that it runs twice.

        group: every group gets each token once, from the oldest that is kept; its consumers share them.
        consumer: a name that no other process uses at the same time; None works for any number of processes.
        follow: wait for more, for ever; without it the loop ends when no token is left.

        Raises RedisUnusableError if Redis does not answer: begin again, nothing is lost.
        """
        return iterate(self._search(partial(self._exchanges.feedback, group, consumer, lease=lease), follow=follow))

    def events(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> Iterator[Ended]:
        """Iterate over how notifications ended: ``for ended in notifier.events(): …``.

        Events are acknowledged as in `feedback`, so each group gets each event at least once. Redis keeps an event for
        `events.keep`. Notifications of one user may end in another order than they were accepted.

        Raises SettingsError if `events.keep` is 0s, RedisUnusableError if Redis does not answer.
        """
        self._builder.check_events()
        return iterate(self._search(partial(self._exchanges.events, group, consumer, lease=lease), follow=follow))

    def routes(self) -> list[Held]:
        """Routes that are stopped or slow: why, since when, and how many users wait. The list is empty if all work.

        Raises RedisUnusableError if Redis does not answer.
        """
        return finished(self._routes())

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """Return the state of a notification; None if it is unknown or no longer kept.

        user: its user, if you know. Then its record is found for `history.keep`. Otherwise a delivered notification is
        known for `keep_delivered` only, without its record.
        """
        return finished(self._status(job_id, user))

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """Return how a user's notifications ended, and what held each one back, the newest first.

        since: no older than this; None is `history.keep`. At most `history.max` of each user are kept.

        Raises RedisUnusableError if Redis does not answer.
        """
        return finished(self._of(*self._history(user, since)))

    async def _apart(self, client: Any, steps: Exchange[T]) -> T:
        with redis_answers(), client.client() as one:
            return await exchange_async(one, steps)

    async def _pause(self, seconds: float) -> None:
        Event().wait(seconds)

    @contextmanager
    def _beside(self, enqueue: Enqueue) -> Iterator[Callable[[Sequence[Job]], Any]]:
        with ThreadPoolExecutor(1) as beside:
            within = copy_context().run
            yield lambda jobs: beside.submit(within, lambda: finished(enqueue(jobs)))
