"""Where a producer's notifications go: one Redis here, several in `notifier.shards.backend`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from redis import Redis
from redis.exceptions import RedisError

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held
from notifier.dispatch.history import Record
from notifier.errors import LimiterUnreachableError, NotifierError, RedisUnusableError
from notifier.limiter import Hold, Permit, RedisLimiter, UserLimiter
from notifier.producer.cancel import Cancellation
from notifier.producer.events import Ended
from notifier.producer.exchanges import Exchanges, Sending, Status
from notifier.producer.feedback import Gone
from notifier.producer.users import Edit
from notifier.rules.preferences import Preferences
from notifier.store.connection import unusable
from notifier.store.exchange import Exchange, exchange, search

if TYPE_CHECKING:
    from notifier.settings import Settings
    from notifier.shards.exchanges import ShardExchanges


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

    def acquire(self, user: str, category: str) -> Permit | Hold:
        """See `Notifier.acquire`. Raises LimiterUnreachableError."""
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


class RedisBackend:
    """A `Backend` that runs the exchanges of one Redis, or of several, on its clients."""

    def __init__(self, redis: Any, exchanges: Exchanges | ShardExchanges, limiter: UserLimiter) -> None:
        """redis: a client, or where the exchanges name the server of each step, the clients by name."""
        self._redis = redis
        self._exchanges = exchanges
        self.limiter = limiter
        self.chunk = exchanges.chunk

    def use(self, settings: Settings) -> None:
        """See `Backend.use`."""
        self._exchanges.use(settings)

    def close(self) -> None:
        """See `Backend.close`."""
        self._redis.close()

    def cancel(self, job_ids: Sequence[str]) -> list[calls.Cancelled]:
        """See `Backend.cancel`."""
        return exchange(self._redis, self._exchanges.cancel(job_ids))

    def cancel_of(self, user: str, kind: calls.Kind) -> Cancellation:
        """See `Backend.cancel_of`."""
        return exchange(self._redis, self._exchanges.cancel_of(user, kind))

    def prefer(self, user: str, edit: Edit, who: str) -> Preferences:
        """See `Backend.prefer`."""
        return exchange(self._redis, self._exchanges.prefer(user, edit, who))

    def acquire(self, user: str, category: str) -> Permit | Hold:
        """See `Backend.acquire`."""
        try:
            return exchange(self._redis, self._exchanges.acquire(user, category))
        except RedisUnusableError as error:
            raise LimiterUnreachableError(str(error)) from error

    def forget(self, user: str, *, hard: bool) -> Cancellation:
        """See `Backend.forget`."""
        return exchange(self._redis, self._exchanges.forget(user, hard=hard))

    def preferences(self) -> Iterator[tuple[str, Preferences]]:
        """See `Backend.preferences`."""
        return search(self._redis, self._exchanges.preferences())

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Gone]:
        """See `Backend.feedback`."""
        return search(self._redis, self._exchanges.feedback(group, consumer, follow=follow, lease=lease))

    def events(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Ended]:
        """See `Backend.events`."""
        return search(self._redis, self._exchanges.events(group, consumer, follow=follow, lease=lease))

    def routes(self) -> list[Held]:
        """See `Backend.routes`."""
        return exchange(self._redis, self._exchanges.routes())

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """See `Backend.status`."""
        return exchange(self._redis, self._exchanges.status(job_id, user))

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """See `Backend.history`."""
        return exchange(self._redis, self._exchanges.history(user, since))

    @contextmanager
    def sending(self) -> Iterator[Callable[[Sequence[calls.Job]], list[str]]]:
        """See `Backend.sending`."""
        sending = self._exchanges.sending()
        with checked(sending):
            yield lambda jobs: self._enqueue(sending.enqueue(jobs))

    def enqueue(self, jobs: Sequence[calls.Job]) -> list[str]:
        """See `Backend.enqueue`."""
        return self._enqueue(self._exchanges.enqueue(jobs))

    def _enqueue(self, steps: Exchange[list[str]]) -> list[str]:
        if not self._exchanges.waits_for_replicas:
            return exchange(self._redis, steps)
        with ExitStack() as stack:
            try:
                return exchange(_on_one_connection(self._redis, stack), steps)
            except RedisError as error:
                raise unusable(error) from error


@contextmanager
def checked(sending: Sending) -> Iterator[None]:
    """Raise in the end for what could not be accepted."""
    try:
        yield
    except NotifierError:
        sending.check()  # what was refused before that goes first: whoever sent them has to know
        raise
    sending.check()


def _on_one_connection(redis: Any, stack: ExitStack) -> Any:
    # WAIT counts what its own connection wrote.
    if isinstance(redis, Mapping):
        return Opened(redis, lambda client: stack.enter_context(client.client()))
    return stack.enter_context(redis.client())


class Opened(dict[str, Any]):
    """Something of each client, by its name, made where it is first asked for."""

    def __init__(self, clients: Mapping[str, Any], make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._clients = clients
        self._make = make

    def __missing__(self, name: str) -> Any:
        made = self[name] = self._make(self._clients[name])
        return made


class SingleRedis(RedisBackend):
    """A `Backend` that is one Redis."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        super().__init__(redis, Exchanges(settings), RedisLimiter(redis))
