"""Where a producer's notifications go: one Redis here, several in `notifier.shards.backend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from redis import Redis
from redis.exceptions import RedisError

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held
from notifier.dispatch.history import Record
from notifier.limiter import RedisLimiter, UserLimiter
from notifier.producer.admission import all_accepted
from notifier.producer.cancel import Cancellation
from notifier.producer.events import Ended
from notifier.producer.exchanges import Exchanges, Status
from notifier.producer.feedback import Gone
from notifier.producer.users import Edit
from notifier.rules.preferences import Preferences
from notifier.store.connection import unusable
from notifier.store.exchange import exchange, search

if TYPE_CHECKING:
    from notifier.settings import Settings

CHUNK: Final = 100  # notifications in one call: about a millisecond of Redis's time


class Backend(Protocol):
    """What `Notifier` needs of where notifications are kept. Each call raises RedisUnusableError where Redis fails."""

    limiter: UserLimiter
    chunk: int  # how many notifications are handed over in one call

    def enqueue(self, jobs: Sequence[calls.Job]) -> list[str]:
        """Accept these; returns their job ids. Raises OverloadedError, NotReplicatedError."""
        ...

    def sending(self) -> AbstractContextManager[Callable[[Sequence[calls.Job]], list[str]]]:
        """By what `send_many` accepts each chunk, for one call of it."""
        ...

    def cancel(self, job_ids: Sequence[str]) -> list[calls.Cancelled]:
        """What became of each; see `Notifier.cancel`."""
        ...

    def cancel_of(self, user: str, kind: calls.Kind) -> Cancellation:
        """Cancel what waits for a user and is of this kind; see `Notifier.cancel`."""
        ...

    def prefer(self, user: str, edit: Edit, who: str) -> Preferences:
        """Change what a user chose; see `Users`."""
        ...

    def preferences(self) -> Iterator[tuple[str, Preferences]]:
        """What all users chose; see `Users.export`."""
        ...

    def forget(self, user: str, *, hard: bool) -> Cancellation:
        """See `Notifier.forget`."""
        ...

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """See `Notifier.status`."""
        ...

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """See `Notifier.history`."""
        ...

    def routes(self) -> list[Held]:
        """See `Notifier.routes`."""
        ...

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Gone]:
        """See `Notifier.feedback`."""
        ...

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on; the connections stay."""
        ...

    def events(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Ended]:
        """See `Notifier.events`."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class SingleRedis:
    """A `Backend` that is one Redis."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._exchanges = Exchanges(settings)
        self.limiter: UserLimiter = RedisLimiter(redis)
        self.chunk = CHUNK

    def use(self, settings: Settings) -> None:
        """See `Backend.use`."""
        self._exchanges.use(settings)

    def close(self) -> None:
        """See `Backend.close`."""
        self._redis.close()

    def cancel(self, job_ids: Sequence[str]) -> list[calls.Cancelled]:
        """See `Backend.cancel`."""
        return exchange(self._redis, self._exchanges.cancel(job_ids))

    def cancel_of(self, user: str, kind: calls.Kind, fence: Mapping[str, bool] | None = None) -> Cancellation:
        """See `Backend.cancel_of`. fence: as of `enqueue`."""
        return exchange(self._redis, self._exchanges.cancel_of(user, kind, fence))

    def prefer(self, user: str, edit: Edit, who: str, fence: Mapping[str, bool] | None = None) -> Preferences:
        """See `Backend.prefer`. fence: as of `enqueue`."""
        return exchange(self._redis, self._exchanges.prefer(user, edit, who, fence))

    def forget(self, user: str, *, hard: bool, fence: Mapping[str, bool] | None = None) -> Cancellation:
        """See `Backend.forget`. fence: as of `enqueue`."""
        return exchange(self._redis, self._exchanges.forget(user, hard=hard, fence=fence))

    def preferences(self) -> Iterator[tuple[str, Preferences]]:
        """See `Backend.preferences`."""
        return search(self._redis, self._exchanges.preferences())

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Gone]:
        """See `Backend.feedback`."""
        found = self._exchanges.feedback(
            group, consumer, follow=follow, lease=lease, kwargs=self._redis.connection_pool.connection_kwargs
        )
        return search(self._redis, found)

    def events(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Ended]:
        """See `Backend.events`."""
        kwargs = self._redis.connection_pool.connection_kwargs
        return search(self._redis, self._exchanges.events(group, consumer, follow=follow, lease=lease, kwargs=kwargs))

    def routes(self) -> list[Held]:
        """See `Backend.routes`."""
        return exchange(self._redis, self._exchanges.routes())

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """See `Backend.status`."""
        return exchange(self._redis, self._exchanges.status(job_id, user))

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """See `Backend.history`."""
        return exchange(self._redis, self._exchanges.history(user, since))

    def sending(self) -> AbstractContextManager[Callable[[Sequence[calls.Job]], list[str]]]:
        """See `Backend.sending`."""
        return nullcontext(self.enqueue)

    def enqueue(self, jobs: Sequence[calls.Job], fence: Mapping[str, bool] | None = None) -> list[str]:
        """See `Backend.enqueue`. fence: for each user whether it is on the way elsewhere; raises MovedError."""
        steps = self._exchanges.enqueue(jobs, fence)
        if not self._exchanges.waits_for_replicas:
            return all_accepted(exchange(self._redis, steps))
        try:
            # WAIT counts what its own connection wrote.
            with self._redis.client() as connection:  # type: ignore[no-untyped-call]
                return all_accepted(exchange(connection, steps))
        except RedisError as error:
            raise unusable(error) from error
