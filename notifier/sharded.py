"""A Notifier over several shards: the same promises, each user's notifications on the shard where the user lives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from threading import Event
from typing import Final, TypeVar

from notifier.client import Notifier, Status
from notifier.errors import (
    LimiterUnreachableError,
    NotifierError,
    NotReplicatedError,
    RedisUnusableError,
    ShardsUnusableError,
)
from notifier.feedback import Gone
from notifier.limiter import Hold, Permit, RedisLimiter, lines
from notifier.limiter.routes import Held
from notifier.policy import Policy, Rules
from notifier.settings import Settings
from notifier.shards import Map, connect_all, on_shard

T = TypeVar("T")
LOOK_EVERY_S: Final = 1.0  # for dead tokens, where the shards have no more: a blocking read waits on one server alone


class ShardedNotifier(Notifier):
    """What `Notifier.from_config` gives where `redis.shards` is set.

    A shard that does not answer stops its own users: `send` for one of them raises ShardsUnusableError; `send_many`
    goes on for the others, and raises it at the end.
    """

    def __init__(self, settings: Settings) -> None:
        """As `Notifier.from_config`."""
        self._stack = ExitStack()
        clients = self._stack.enter_context(connect_all(settings))
        super().__init__(clients[settings.redis.shards[0].name], settings)
        self._map = Map.of(settings.redis)
        self._at = {name: Notifier(client, settings) for name, client in clients.items()}
        self.limiter = ShardedLimiter(self._map, {name: RedisLimiter(client) for name, client in clients.items()})

    def close(self) -> None:
        """Close the connections to all shards."""
        self._stack.close()

    def cancel(self, job_id: str) -> lines.Cancelled:
        """See `Notifier.cancel`. All shards are asked: a job id does not tell its user."""
        return self._find(lambda notifier: notifier.cancel(job_id), "unknown")

    def status(self, job_id: str) -> Status | None:
        """See `Notifier.status`, and `cancel`."""
        return self._find(lambda notifier: notifier.status(job_id), None)

    def routes(self) -> list[Held]:
        """See `Notifier.routes`. Each shard finds out for itself: a route may be held on one alone."""
        held = []
        for name, notifier in self._at.items():
            with on_shard(name):
                held += [each.seen_on(name) for each in notifier.routes()]
        return held

    def feedback(
        self,
        group: str = "default",
        consumer: str | None = None,
        *,
        follow: bool = False,
        lease: timedelta = timedelta(minutes=1),
    ) -> Iterator[Gone]:
        """See `Notifier.feedback`. A shard that does not answer holds up no other's: it is raised at the end."""
        while True:
            found, dead = False, {}
            for name, notifier in self._at.items():
                try:
                    for gone in notifier.feedback(group, consumer, lease=lease):
                        found = True
                        yield gone
                except RedisUnusableError as error:
                    dead[name] = error
            if dead:
                raise _unusable(dead)
            if not follow:
                return
            if not found:
                Event().wait(LOOK_EVERY_S)

    def _find(self, ask: Callable[[Notifier], T], unknown: T) -> T:
        dead = {}
        for name, notifier in self._at.items():
            try:
                answer = ask(notifier)
            except RedisUnusableError as error:
                dead[name] = error
            else:
                if answer != unknown:
                    return answer
        if dead:
            raise _unusable(dead)
        return unknown

    def _enqueue(self, jobs: Sequence[lines.Job]) -> list[str]:
        with self._sending() as enqueue:
            return enqueue(jobs)

    @contextmanager
    def _sending(self) -> Iterator[Callable[[Sequence[lines.Job]], list[str]]]:
        spread = _Spread(self._map, {name: notifier._enqueue for name, notifier in self._at.items()})  # noqa: SLF001
        try:
            yield spread.enqueue
        except NotifierError:
            spread.check()  # what was refused before that goes first: whoever sent them has to know
            raise
        spread.check()


class _Spread:
    """One call of `send` or `send_many`: every hundred parted by shard, a round trip to each; and what was refused."""

    def __init__(self, of: Map, enqueue: Mapping[str, Callable[[Sequence[lines.Job]], list[str]]]) -> None:
        self._map = of
        self._enqueue = enqueue
        self._dead: dict[str, RedisUnusableError] = {}
        self._refused: list[int] = []
        self._seen = 0

    def enqueue(self, jobs: Sequence[lines.Job]) -> list[str]:
        """Accept a hundred. The job ids; none once something was refused, so that what is told in order has no hole."""
        job_ids: dict[int, str] = {}
        unsure: NotReplicatedError | None = None
        for name, places in self._parted(jobs).items():
            try:
                if name not in self._dead:
                    found = self._enqueue[name]([jobs[place] for place in places])
                    job_ids |= zip(places, found, strict=True)
                    continue
            except NotReplicatedError as error:
                unsure = error
                continue
            except RedisUnusableError as error:
                self._dead[name] = error
            self._refused += [self._seen + place for place in places]
        self._seen += len(jobs)
        if unsure is not None:
            raise unsure
        return [] if self._refused else [job_ids[place] for place in range(len(jobs))]

    def check(self) -> None:
        """Raise ShardsUnusableError if something was refused."""
        if self._refused:
            raise _unusable(self._dead, sorted(self._refused), self._seen)

    def _parted(self, jobs: Sequence[lines.Job]) -> dict[str, list[int]]:
        parted: dict[str, list[int]] = {}
        for place, job in enumerate(jobs):
            parted.setdefault(self._map.home(json.loads(job.meta)["user"]), []).append(place)
        return parted


class ShardedLimiter:
    """A `Limiter` over shards: each user's is the one where the user lives."""

    def __init__(self, of: Map, limiters: Mapping[str, RedisLimiter]) -> None:
        self._map = of
        self._limiters = limiters

    def acquire(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `Limiter.acquire`."""
        return self._ask(user, lambda limiter: limiter.acquire(user, rules, cost=cost))

    def peek(self, user: str, rules: Policy | Rules, *, cost: int = 1) -> Permit | Hold:
        """See `Limiter.peek`."""
        return self._ask(user, lambda limiter: limiter.peek(user, rules, cost=cost))

    def refund(self, permit: Permit) -> bool:
        """See `Limiter.refund`."""
        return self._ask(permit.user, lambda limiter: limiter.refund(permit))

    def reset(self, user: str, *categories: str) -> int:
        """See `Limiter.reset`."""
        return self._ask(user, lambda limiter: limiter.reset(user, *categories))

    def _ask(self, user: str, ask: Callable[[RedisLimiter], T]) -> T:
        name = self._map.home(user)
        try:
            return ask(self._limiters[name])
        except LimiterUnreachableError as error:
            raise LimiterUnreachableError(f"shard {name}: {error}") from error


def _unusable(
    dead: Mapping[str, RedisUnusableError], refused: Sequence[int] = (), tried: int = 0
) -> ShardsUnusableError:
    why = "; ".join(f"shard {name}: {error}" for name, error in dead.items())
    if tried > 1:
        why += f"; {len(refused)} of {tried} were not accepted, those of the others were"
    return ShardsUnusableError(why, tuple(dead), tuple(refused))
