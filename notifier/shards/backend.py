"""Several shards as one backend: the same promises, each user's notifications on the shard where the user lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

from redis import Redis

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held
from notifier.dispatch.history import Record
from notifier.errors import LimiterUnreachableError, NotifierError, RedisUnusableError
from notifier.limiter import Hold, Permit, RedisLimiter, UserLimiter
from notifier.producer.backend import CHUNK, SingleRedis
from notifier.producer.cancel import Cancellation
from notifier.producer.events import Ended
from notifier.producer.exchanges import Status
from notifier.producer.feedback import Gone
from notifier.producer.users import Edit
from notifier.rules.policies import Rules
from notifier.rules.policy import Policy
from notifier.rules.preferences import Preferences
from notifier.scripts.ownership import MovedError
from notifier.shards.bulk_send import BulkSend, Patience, unusable_shards
from notifier.shards.map import Map, Route, connect_all, connect_home, on_shard

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")
LOOK_EVERY_S: Final = 1.0  # for dead tokens, where the shards have no more: a blocking read waits on one server alone


class Shards:
    """A `Backend` that is several Redis.

    A shard that does not answer stops its own users: `enqueue` for one of them raises ShardsUnusableError; `sending`
    goes on for the others, and raises it at the end.
    """

    def __init__(self, settings: Settings) -> None:
        """Connects to `redis.shards`."""
        self._settings = settings
        self._stack = ExitStack()
        clients = self._stack.enter_context(connect_all(settings))
        self._map = Map.of(settings.redis)
        self._clients = clients
        self._at = {name: SingleRedis(client, settings) for name, client in clients.items()}
        self.chunk = CHUNK * len(clients)  # about a hundred for each
        self.limiter: UserLimiter = ShardedLimiter(self._map, clients)

    def use(self, settings: Settings) -> None:
        """See `Backend.use`."""
        self._settings = settings
        for shard in self._at.values():
            shard.use(settings)

    def close(self) -> None:
        """Close the connections to all shards."""
        self._stack.close()

    def cancel(self, job_ids: Sequence[str]) -> list[calls.Cancelled]:
        """See `Backend.cancel`. All shards are asked: a job id does not tell its user."""
        answers: dict[str, calls.Cancelled] = dict.fromkeys(job_ids, "unknown")
        dead = {}
        for name, shard in self._at.items():
            left = [job_id for job_id, answer in answers.items() if answer == "unknown"]
            try:
                answers |= dict(zip(left, shard.cancel(left), strict=True))
            except RedisUnusableError as error:
                dead[name] = error
        if dead and "unknown" in answers.values():
            raise unusable_shards(dead)
        return [answers[job_id] for job_id in job_ids]

    def cancel_of(self, user: str, kind: calls.Kind) -> Cancellation:
        """See `Backend.cancel_of`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].cancel_of(user, kind, fence))

    def prefer(self, user: str, edit: Edit, who: str) -> Preferences:
        """See `Backend.prefer`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].prefer(user, edit, who, fence))

    def forget(self, user: str, *, hard: bool) -> Cancellation:
        """See `Backend.forget`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].forget(user, hard=hard, fence=fence))

    def preferences(self) -> Iterator[tuple[str, Preferences]]:
        """See `Backend.preferences`. All shards must answer."""
        for name, shard in self._at.items():
            with on_shard(name):
                yield from shard.preferences()

    def status(self, job_id: str, user: str | None = None) -> Status | None:
        """See `Backend.status`, and `cancel`."""
        name, found = self._find(lambda shard: shard.status(job_id, user), None)
        return found and replace(found, shard=name)

    def history(self, user: str, since: timedelta | None = None) -> list[Record]:
        """See `Backend.history`."""
        with connect_home(self._settings, user) as (name, _):
            return self._at[name].history(user, since)

    def routes(self) -> list[Held]:
        """See `Backend.routes`. Each shard finds out for itself: a route may be held on one alone."""
        held = []
        for name, shard in self._at.items():
            with on_shard(name):
                held += [each.seen_on(name) for each in shard.routes()]
        return held

    def feedback(
        self,
        group: str,
        consumer: str | None,
        *,
        follow: bool,
        lease: timedelta,
    ) -> Iterator[Gone]:
        """See `Backend.feedback`. A shard that does not answer holds up no other's: it is raised at the end."""
        return self._read(lambda shard: shard.feedback(group, consumer, follow=False, lease=lease), follow=follow)

    def events(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Ended]:
        """See `Backend.events`, and `feedback`."""
        return self._read(lambda shard: shard.events(group, consumer, follow=False, lease=lease), follow=follow)

    def _read(self, read: Callable[[SingleRedis], Iterator[T]], *, follow: bool) -> Iterator[T]:
        while True:
            found, dead = False, {}
            for name, shard in self._at.items():
                try:
                    for each in read(shard):
                        found = True
                        yield each
                except RedisUnusableError as error:
                    dead[name] = error
            if dead:
                raise unusable_shards(dead)
            if not follow:
                return
            if not found:
                Event().wait(LOOK_EVERY_S)

    def _find(self, ask: Callable[[SingleRedis], T], unknown: T) -> tuple[str, T]:
        dead = {}
        for name, shard in self._at.items():
            try:
                answer = ask(shard)
            except RedisUnusableError as error:
                dead[name] = error
            else:
                if answer != unknown:
                    return name, answer
        if dead:
            raise unusable_shards(dead)
        return "", unknown

    def enqueue(self, jobs: Sequence[calls.Job]) -> list[str]:
        """See `Backend.enqueue`."""
        with self.sending() as enqueue:
            return enqueue(jobs)

    @contextmanager
    def sending(self) -> Iterator[Callable[[Sequence[calls.Job]], list[str]]]:
        """See `Backend.sending`."""
        bulk = BulkSend(self._map, self._clients, {name: shard.enqueue for name, shard in self._at.items()})
        try:
            yield bulk.enqueue
        except NotifierError:
            bulk.check()  # what was refused before that goes first: whoever sent them has to know
            raise
        bulk.check()


def at_home(of: Map, user: str, ask: Callable[[str, Mapping[str, bool]], T]) -> T:
    """Ask the shard on which a user lives, by its name and with the fence for the user, and follow who has moved.

    Raises ShardsUnusableError.
    """
    route, patience = Route(of, user), Patience()
    while True:
        try:
            with on_shard(route.shard):
                return ask(route.shard, {user: route.leaves})
        except MovedError as moved:
            route.follow(moved.users[user])
            if route.waits:
                patience.wait()


class ShardedLimiter:
    """A `UserLimiter` over shards: each user's is the one where the user lives."""

    def __init__(self, of: Map, clients: Mapping[str, Redis]) -> None:
        self._map = of
        self._clients = clients

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.acquire`."""
        return self._ask(user, lambda limiter: limiter.acquire(user, rules, cost=cost))

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `UserLimiter.peek`."""
        return self._ask(user, lambda limiter: limiter.peek(user, rules, cost=cost))

    def refund(self, permit: Permit) -> bool:
        """See `UserLimiter.refund`."""
        return self._ask(permit.user, lambda limiter: limiter.refund(permit))

    def reset(self, user: str, *categories: str) -> int:
        """See `UserLimiter.reset`."""
        return self._ask(user, lambda limiter: limiter.reset(user, *categories))

    def _ask(self, user: str, ask: Callable[[RedisLimiter], T]) -> T:
        route, patience = Route(self._map, user), Patience()
        while True:
            try:
                return ask(RedisLimiter(self._clients[route.shard], fence={user: route.leaves}))
            except MovedError as moved:
                try:
                    route.follow(moved.users[user])
                    if route.waits:
                        patience.wait()
                except RedisUnusableError as error:
                    raise LimiterUnreachableError(str(error)) from None
            except LimiterUnreachableError as error:
                raise LimiterUnreachableError(f"shard {route.shard}: {error}") from error
