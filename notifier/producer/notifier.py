"""Notifier: what a producer calls. Checks a notification, writes it as an RQ job, tells what became of it."""

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

    Every call waits for Redis, and blocks its thread meanwhile: usually under a millisecond. Where Redis hangs, a call
    ends after at most twice `redis.socket_timeout` (5 s as shipped), because it is tried once more; `send_many` for
    each hundred. The first call may take two seconds more, for `follow`. `feedback(follow=True)` waits for ever. In an
    asyncio program use AsyncNotifier.
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
        """Take up the file, and what is published, now. What cannot be used is raised, and all stays as it was.

        Raises SettingsError, also where this was not made by `from_config`; RedisUnusableError.
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
        """Accept one notification; returns its job id (with a `dedupe_key` seen before, the earlier one's).

        job_id: an id of the caller's own, else a random one. As long as a notification is kept, one of its id is
        not accepted again: so a caller that does not know whether a call went through can repeat it.
        Raises InvalidNotificationError before anything is written, RedisUnusableError if Redis does not answer,
        OverloadedError where `max_waiting` is reached and the category's `overflow` makes no room, and with
        `redis.wait_replicas` NotReplicatedError for what is accepted and may not survive the primary.
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
        """Accept any number, a hundred to a round trip; returns how many. Never holds more than two hundred.

        A thread of its own waits for Redis, while the next hundred is taken from the iterable and checked.

        job_ids: as for `send`, one for each. on_accepted: called with the job ids of each hundred, in order.
        Raises InvalidNotificationError, its field led by the place in the iterable, as in
        ``notifications[17].user``: all before that one were accepted, none after it. So it is where the
        iterable raises an error of its own. OverloadedError at the end names what was not accepted; `on_accepted` is
        not called from the first of these on.
        """
        if iscoroutinefunction(on_accepted):
            raise TypeError("on_accepted is a coroutine function: AsyncNotifier awaits one")
        return finished(self._send_many(iter(notifications), job_ids, on_accepted, self._enqueued))

    def acquire(self, user: str, category: str = DEFAULT_CATEGORY) -> UserPermit | Hold:
        """Take the right to send this user something of a category now, by the rules in force, outside of the workers.

        It counts as what the workers send. What the user chose holds too, and a mute until it ends. Quiet hours, send
        hours and calendar windows go by the zone that the user chose, else by that of the configuration. Raises
        InvalidNotificationError for an unknown category, LimiterUnreachableError where Redis is away.
        """
        with reached():
            return finished(self._acquire(user, category))

    def refund(self, permit: UserPermit) -> bool:
        """Give a permit of `acquire` back because nothing reached the user; what waits is looked at again at once.

        False where it has lapsed, or was given back before. Raises LimiterUnreachableError where Redis is away.
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
        """Cancel what no worker has taken yet: one notification, or all of a user that match.

        With a job id it returns 'cancelled'; or 'sending' or 'ended' where it is too late; or 'unknown'. Where one of
        its devices has taken it and others are to be tried again, they are not: it is delivered, and this returns
        'ended'. With `user` it cancels each notification of the user that has this category, collapse id and tag, as
        far as they are given, and was accepted before this call, and returns a Cancellation.
        Raises InvalidNotificationError for a field that no notification could have.
        """
        return finished(self._cancel(job_id, user, category, collapse_id, tag))

    def forget(self, user: str, *, hard: bool = False) -> Cancellation:
        """Cancel what waits for a user, and delete all that is kept of the user; returns what was cancelled.

        That is: preferences, history, ended notifications with their text and tokens, dedupe keys, a pause of
        the user, and what names the user in the feeds of dead tokens and events and in the logs of changes. When
        something was sent is kept, under a hash of the user, until the limits do not need it any more; hard: that goes
        too, so that the limits begin anew. What a worker sends at that moment is too late, and leaves traces: they go
        with another call.
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
        """Iterate over the tokens that a provider called dead: ``for gone in notifier.feedback(): …``.

        Each is acknowledged when the loop comes back for the next one. One over which the loop broke, or was left,
        is given again: to whoever asks once `lease` has passed, and to a consumer of the same name at once. So let
        the loop's body take less than `lease`, and do no harm when done twice.
        group: every group is given each token once, from the oldest that is kept; its consumers share them.
        consumer: a name that no other process uses at the same time; None is for any number of processes.
        follow: wait for more, for ever; else end when nothing is left.
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

        Each is given and acknowledged as in `feedback`, so at least once to each group, and at most `events.keep` after
        its notification ended. Notifications of one user may end in another order than they were accepted.
        Raises SettingsError where `events.keep` is 0s, RedisUnusableError if Redis does not answer.
        """
        self._builder.check_events()
        return iterate(self._search(partial(self._exchanges.events, group, consumer, lease=lease), follow=follow))

    def routes(self) -> list[Held]:
        """The routes by which nothing goes now, why, since when, and how many wait; empty when all is well.

        Raises RedisUnusableError if Redis does not answer.
        """
        return finished(self._routes())

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """Return what became of a notification; None for one that is unknown or no longer kept.

        user: whose it is, if you know: then its record is found even when it was delivered long ago, for
        `history.keep`. Else a delivered one is known for `keep_delivered`, without its record.
        """
        return finished(self._status(job_id, user))

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """Return what became of a user's notifications, and what held each one back: the newest first.

        since: no older than this; None is `history.keep`. At most `history.max` are kept of a user.
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
