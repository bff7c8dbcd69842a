"""What a producer asks of several shards, step by step, as `notifier.producer.exchanges` of one: for both notifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held
from notifier.dispatch.history import Record
from notifier.errors import RedisUnusableError
from notifier.limiter import Hold, Permit
from notifier.producer.cancel import Cancellation
from notifier.producer.events import Ended
from notifier.producer.exchanges import Exchanges, Status
from notifier.producer.feedback import Gone
from notifier.producer.users import Edit
from notifier.rules.preferences import Preferences
from notifier.scripts.ownership import MovedError
from notifier.shards.bulk_send import BulkSend, MoveTimeout, unusable_shards
from notifier.shards.map import Map, Route, find_home, on_shard
from notifier.store.exchange import Exchange, Pause, Search, on

if TYPE_CHECKING:
    from notifier.settings import Settings

T = TypeVar("T")
LOOK_EVERY_S: Final = 1.0  # for dead tokens, where the shards have no more: a blocking read waits on one server alone


class ShardExchanges:
    """The exchanges with `redis.shards`, by the settings: each names the shard of its steps.

    A shard that does not answer stops its own users: `enqueue` for one of them raises ShardsUnusableError; `sending`
    goes on for the others, and raises it at the end.
    """

    def __init__(self, settings: Settings) -> None:
        self._map = Map.of(settings.redis)
        self._at = {name: Exchanges(settings) for name in self._map.names}
        self.chunk = sum(each.chunk for each in self._at.values())
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """See `Exchanges.use`."""
        self.waits_for_replicas = settings.redis.wait_replicas > 0
        for each in self._at.values():
            each.use(settings)

    def cancel(self, job_ids: Sequence[str]) -> Exchange[list[calls.Cancelled]]:
        """See `Notifier.cancel`. All shards are asked: a job id does not tell its user."""
        answers: dict[str, calls.Cancelled] = dict.fromkeys(job_ids, "unknown")
        dead = {}
        for name, shard in self._at.items():
            left = [job_id for job_id, answer in answers.items() if answer == "unknown"]
            try:
                found = yield from on(name, shard.cancel(left), of=len(self._at))
            except RedisUnusableError as error:
                dead[name] = error
            else:
                answers |= dict(zip(left, found, strict=True))
        if dead and "unknown" in answers.values():
            raise unusable_shards(dead)
        return [answers[job_id] for job_id in job_ids]

    def cancel_of(self, user: str, kind: calls.Kind) -> Exchange[Cancellation]:
        """See `Notifier.cancel`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].cancel_of(user, kind, fence))

    def prefer(self, user: str, edit: Edit, who: str) -> Exchange[Preferences]:
        """See `Exchanges.prefer`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].prefer(user, edit, who, fence))

    def acquire(self, user: str, category: str) -> Exchange[Permit | Hold]:
        """See `Exchanges.acquire`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].acquire(user, category, fence))

    def forget(self, user: str, *, hard: bool) -> Exchange[Cancellation]:
        """See `Notifier.forget`."""
        return at_home(self._map, user, lambda name, fence: self._at[name].forget(user, hard=hard, fence=fence))

    def preferences(self) -> Search[tuple[str, Preferences]]:
        """What all users chose. All shards must answer."""
        for name, shard in self._at.items():
            with on_shard(name):
                yield from on(name, shard.preferences())

    def status(self, job_id: str, user: str | None = None) -> Exchange[Status | None]:
        """See `Notifier.status`, and `cancel`."""
        dead = {}
        for name, shard in self._at.items():
            try:
                found = yield from on(name, shard.status(job_id, user), of=len(self._at))
            except RedisUnusableError as error:
                dead[name] = error
            else:
                if found is not None:
                    return replace(found, shard=name)
        if dead:
            raise unusable_shards(dead)
        return None

    def history(self, user: str, since: timedelta | None = None) -> Exchange[list[Record]]:
        """See `Notifier.history`."""
        name = yield from find_home(self._map, user)
        with on_shard(name):
            return (yield from on(name, self._at[name].history(user, since)))

    def routes(self) -> Exchange[list[Held]]:
        """See `Notifier.routes`. Each shard finds out for itself: a route may be held on one alone."""
        held = []
        for name, shard in self._at.items():
            with on_shard(name):
                found = yield from on(name, shard.routes(), of=len(self._at))
            held += [each.seen_on(name) for each in found]
        return held

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Search[Gone]:
        """See `Notifier.feedback`. A shard that does not answer holds up no other's: it is raised at the end."""
        return self._read(lambda shard: shard.feedback(group, consumer, follow=False, lease=lease), follow=follow)

    def events(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Search[Ended]:
        """See `Notifier.events`, and `feedback`."""
        return self._read(lambda shard: shard.events(group, consumer, follow=False, lease=lease), follow=follow)

    def _read(self, read: Callable[[Exchanges], Search[T]], *, follow: bool) -> Search[T]:
        while True:
            seen: set[str] = set()
            dead = {}
            for name, shard in self._at.items():
                try:
                    yield from on(name, read(shard), seen=seen)
                except RedisUnusableError as error:
                    dead[name] = error
            if dead:
                raise unusable_shards(dead)
            if not follow:
                return
            if not seen:
                yield Pause(LOOK_EVERY_S)

    def enqueue(self, jobs: Sequence[calls.Job]) -> Exchange[list[str]]:
        """See `Exchanges.enqueue`; of a single call."""
        sending = self.sending()
        job_ids = yield from sending.enqueue(jobs)
        sending.check()
        return job_ids

    def sending(self) -> BulkSend:
        """See `Exchanges.sending`."""
        return BulkSend(self._map, self._at)


def at_home(of: Map, user: str, ask: Callable[[str, Mapping[str, bool]], Exchange[T]]) -> Exchange[T]:
    """Ask the shard on which a user lives, by its name and with the fence for the user, and follow who has moved.

    Raises ShardsUnusableError.
    """
    route, timeout = Route(of, user), MoveTimeout()
    while True:
        try:
            with on_shard(route.shard):
                return (yield from on(route.shard, ask(route.shard, {user: route.leaves})))
        except MovedError as moved:
            route.follow(moved.users[user])
            if route.waits:
                yield from timeout.wait()
