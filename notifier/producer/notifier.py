"""Notifier: what a producer calls. Checks a notification, writes it as an RQ job, tells what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Self, TypeVar, overload

from redis import Redis

from notifier.errors import NotifierError, RedisUnusableError
from notifier.limiter import Hold
from notifier.notification import Notification
from notifier.notification.notification import check_user
from notifier.producer.base import Producer
from notifier.producer.cancel import Cancellation, each_once
from notifier.producer.channels import Channels
from notifier.producer.events import Ended
from notifier.producer.exchanges import Status
from notifier.producer.feedback import Gone
from notifier.producer.jobs import Bulk, check_no_more, ids_of, next_id
from notifier.producer.permits import UserPermit, reached
from notifier.producer.routing import FOLLOW_S, Split, ended, first_known
from notifier.producer.users import Asked, Users
from notifier.queue import backlogs, calls
from notifier.queue.circuits import Held, by_route
from notifier.queue.history import Record
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.rules.preferences import Preferences
from notifier.scripts.keys import under
from notifier.scripts.loader import finished
from notifier.store.connection import redis_answers
from notifier.store.exchange import Exchange, Search, exchange, nothing
from notifier.store.partitions import Partition, Partitions, connect_all, search_at
from notifier.store.pipelining import together, whole

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

    def __init__(self, redis: Redis | Partitions, settings: Settings) -> None:
        """`from_config` builds one from the YAML."""
        super().__init__(redis, settings)

    @property
    def users(self) -> Users:
        """Return the preferences of users, to read and to change."""
        return Users(self._prefer, self._preferences, self._edits)

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
            job = self._builder.build(notification, job_id, trace)
            return self._enqueue_at(self._partitions.of_user(notification.user), self._exchanges.enqueue([job]))[0]

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
        ids = ids_of(job_ids)
        with ThreadPoolExecutor(1) as beside:
            within = copy_context().run
            bulk = Bulk(
                self._builder,
                self._chunk,
                self._enqueue,
                lambda jobs: beside.submit(within, self._enqueue, jobs),
                on_accepted,
            )
            try:
                for notification in notifications:
                    if bulk.add(notification, next_id(ids)) and not finished(bulk.go_on()):
                        break
                else:
                    check_no_more(ids)
            except BaseException as error:
                finished(bulk.finish(error))
                raise
            finished(bulk.finish())
        return bulk.tried

    def acquire(self, user: str, category: str = DEFAULT_CATEGORY) -> UserPermit | Hold:
        """Take the right to send this user something of a category now, by the rules in force, outside of the workers.

        It counts as what the workers send. What the user chose holds too, and a mute until it ends. Quiet hours, send
        hours and calendar windows go by the zone that the user chose, else by that of the configuration. Raises
        InvalidNotificationError for an unknown category, LimiterUnreachableError where Redis is away.
        """
        user = check_user(user)
        with reached():
            return self._of(user, self._exchanges.acquire(user, self._builder.category(category).name))

    def refund(self, permit: UserPermit) -> bool:
        """Give a permit of `acquire` back because nothing reached the user; what waits is looked at again at once.

        False where it has lapsed, or was given back before. Raises LimiterUnreachableError where Redis is away.
        """
        with reached():
            return self._of(permit.user, self._exchanges.refund(permit))

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
        if job_id is not None and user is category is collapse_id is tag is None:
            return self._cancelled([job_id])[0]
        return self._of(*self._cancel(job_id, user, category, collapse_id, tag))

    def forget(self, user: str, *, hard: bool = False) -> Cancellation:
        """Cancel what waits for a user, and delete all that is kept of the user; returns what was cancelled.

        That is: preferences, history, ended notifications with their text and tokens, dedupe keys, a pause of
        the user, and what names the user in the feeds of dead tokens and events and in the logs of changes. When
        something was sent is kept, under a hash of the user, until the limits do not need it any more; hard: that goes
        too, so that the limits begin anew. What a worker sends at that moment is too late, and leaves traces: they go
        with another call.
        """
        user = check_user(user)
        # A pause stands in all partitions, and what operators did in any.
        asked = [(at, self._exchanges.forget(user, hard=hard)) for at in self._partitions]
        return whole(self._partitions, self._together(asked))[self._partitions.of_user(user).number]

    def cancel_many(self, job_ids: Iterable[str]) -> Cancellation:
        """Cancel notifications by their job ids: which were cancelled, which were too late, which are unknown."""
        ids = each_once(job_ids)
        return Cancellation.of(ids, self._cancelled(ids))

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
        return self._search(partial(self._exchanges.feedback, group, consumer, lease=lease), follow=follow)

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
        return self._search(partial(self._exchanges.events, group, consumer, lease=lease), follow=follow)

    def routes(self) -> list[Held]:
        """The routes by which nothing goes now, why, since when, and how many wait; empty when all is well.

        Raises RedisUnusableError if Redis does not answer.
        """
        if len(self._partitions) == 1:
            return self._run(self._partitions[0], self._exchanges.routes())
        return by_route(
            whole(self._partitions, self._together((at, self._exchanges.routes()) for at in self._partitions))
        )

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """Return what became of a notification; None for one that is unknown or no longer kept.

        user: whose it is, if you know: then its record is found even when it was delivered long ago, for
        `history.keep`. Else a delivered one is known for `keep_delivered`, without its record.
        """
        asked = self._status(job_id, user)
        return first_known([at for at, _ in asked], self._together(asked))

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """Return what became of a user's notifications, and what held each one back: the newest first.

        since: no older than this; None is `history.keep`. At most `history.max` are kept of a user.
        Raises RedisUnusableError if Redis does not answer.
        """
        return self._of(*self._history(user, since))

    _connect = staticmethod(connect_all)

    def _prefer(self, asked: Asked, who: str) -> Preferences:
        user, edit = asked()
        user = check_user(user)
        return self._of(user, self._exchanges.prefer(user, edit, who))

    def _preferences(self) -> Iterator[tuple[str, Preferences]]:
        return self._search(lambda **_: self._exchanges.preferences())

    def _search(self, find: Callable[..., Search[T]], *, follow: bool = False) -> Iterator[T]:
        """Search each partition; where there are several, one after the other, again and again.

        One that is away is told of in the end; in a search without one, only where all are.
        """
        several = len(self._partitions) > 1
        while True:
            found_any, ended = False, list[RedisUnusableError | None]()
            for at in self._partitions:
                try:
                    for each in search_at(at, partial(find, follow=follow and not several)):
                        found_any = True
                        yield each
                    ended.append(None)
                except RedisUnusableError as error:
                    ended.append(error)
            if not (several and follow) or all(ended):
                whole(self._partitions, ended)
                return
            if not found_any:
                Event().wait(FOLLOW_S)

    def _of(self, user: str, steps: Exchange[T]) -> T:
        return self._run(self._partitions.of_user(user), steps)

    def _run(self, at: Partition, steps: Exchange[T]) -> T:
        with under(at.prefixes):
            found: T = exchange(at.client, at.checked(steps))
        return found

    def _together(self, asked: Iterable[tuple[Partition, Exchange[T]]]) -> list[T | NotifierError]:
        return together([(at, at.checked(steps)) for at, steps in asked])

    def _cancelled(self, job_ids: Sequence[str]) -> list[backlogs.Cancelled]:
        split = Split(map(self._where, job_ids))
        return split.answers(self._together(split.ask(job_ids, self._exchanges.cancel)), "unknown")

    def _enqueue(self, jobs: Sequence[calls.Job]) -> list[str]:
        if len(self._partitions) == 1:
            return self._enqueue_at(self._partitions[0], self._exchanges.enqueue(jobs))
        self._agree()
        split = self._split(jobs)
        asked = split.ask(jobs, self._exchanges.enqueue)
        if not self._exchanges.waits_for_replicas:
            return split.answers(self._together(asked))
        return split.answers([ended(partial(self._enqueue_at, at, steps)) for at, steps in asked])

    def _enqueue_at(self, at: Partition, steps: Exchange[list[str]]) -> list[str]:
        self._agree()
        if not self._exchanges.waits_for_replicas:
            return self._run(at, steps)
        # WAIT counts what its own connection wrote.
        with under(at.prefixes), redis_answers(), at.client.client() as one:
            found: list[str] = exchange(one, at.checked(steps))
            return found

    def _agree(self) -> None:
        if (first := self._unagreed()) is not None:
            with suppress(RedisUnusableError):
                self._run(first, nothing())
            self._asked_first = True
