"""One call of `send` or `send_many` over shards: what is sent parted by shard, and what could not be accepted."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from notifier.dispatch import calls
from notifier.errors import NotReplicatedError, OverloadedError, RedisUnusableError, Refused, ShardsUnusableError
from notifier.producer.exchanges import CHUNK, Exchanges
from notifier.scripts.keys import job_key, redis_key
from notifier.scripts.ownership import MovedError
from notifier.shards.map import Map, Route
from notifier.store.exchange import Commands, Exchange, Pause, on

LOOK_EVERY_S: Final = 0.005
TIMEOUT_S: Final = 15.0  # longer than a dead worker's lease


class MoveTimeout:
    """How long a user who is on the way from one shard to another is waited for."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + TIMEOUT_S

    def wait(self) -> Exchange[None]:
        """Wait a moment; raise RedisUnusableError where it has been too long."""
        if time.monotonic() > self._ends:
            raise RedisUnusableError(
                "the move of a user to another shard has not ended in time; "
                "if `notifier shards` was interrupted, run the same command again: it goes on"
            )
        yield Pause(LOOK_EVERY_S)


class BulkSend:
    """Accepts the notifications of one call, a round trip to a shard for a hundred of them."""

    def __init__(self, of: Map, at: Mapping[str, Exchanges]) -> None:
        """at: the exchanges with each shard, by its name."""
        self.map = of
        self.at = at
        self.dead: set[str] = set()  # these are not asked again in this call
        self.errors: dict[str, RedisUnusableError] = {}
        self._refused: list[int] = []
        self._seen = 0

    def enqueue(self, jobs: Sequence[calls.Job]) -> Exchange[list[str]]:
        """Accept a chunk. The job ids; none once something was refused, so that what is told in order has no hole."""
        batch = PendingBatch(self, jobs)
        while batch.left:
            yield from batch.ask_all()
        self._refused += [self._seen + place for place in batch.refused]
        self._seen += len(jobs)
        if batch.unsure is not None:
            raise batch.unsure
        if batch.over:
            raise OverloadedError(sorted(batch.over, key=lambda each: each.place), len(jobs))
        return [] if self._refused else [batch.job_ids[place] for place in range(len(jobs))]

    def check(self) -> None:
        """Raise ShardsUnusableError if something was refused."""
        if self._refused:
            raise unusable_shards(self.errors, sorted(self._refused), self._seen)


class PendingBatch:
    """Some jobs by their places: what is left of them, and what became of the others."""

    def __init__(self, bulk: BulkSend, jobs: Sequence[calls.Job]) -> None:
        self._bulk = bulk
        self._users = [json.loads(job.meta)["user"] for job in jobs]
        self._routes = {user: Route(bulk.map, user) for user in self._users}
        self._timeout = MoveTimeout()
        self.left = dict(enumerate(jobs))
        self.job_ids: dict[int, str] = {}
        self.refused: list[int] = []
        self.unsure: NotReplicatedError | None = None
        self.over: list[Refused] = []

    def ask_all(self) -> Exchange[None]:
        """Ask each shard once. Those who are waited for stand apart: they would keep back the others."""
        parted: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for place in self.left:
            route = self._routes[self._users[place]]
            parted[route.shard, route.waits].append(place)
        for (name, waits), places in parted.items():
            for n in range(0, len(places), CHUNK):
                yield from self._ask(name, places[n : n + CHUNK], len(parted), waits=waits)

    def _ask(self, name: str, places: list[int], of: int, *, waits: bool) -> Exchange[None]:
        bulk = self._bulk
        fence = {self._users[place]: self._routes[self._users[place]].leaves for place in places}
        try:
            if waits:
                yield from self._timeout.wait()
            if name in bulk.dead:
                raise bulk.errors[name]
            found = yield from on(name, bulk.at[name].enqueue([self.left[place] for place in places], fence), of=of)
        except MovedError as moved:
            yield from self._follow(name, moved.users, places)
        except NotReplicatedError as error:
            self.unsure = error
            self._done(places)
        except OverloadedError as error:
            self.over += [replace(each, place=places[each.place]) for each in error.refused]
            self._done(places)
        except RedisUnusableError as error:
            self._refuse(name, error, places)
            if not waits:
                bulk.dead.add(name)
        else:
            self.job_ids |= zip(places, found, strict=True)
            self._done(places)

    def _follow(self, name: str, moved: Mapping[str, str], places: list[int]) -> Exchange[None]:
        """Send those on who have moved, save what that shard had accepted before they did."""
        theirs = [place for place in places if self._users[place] in moved]
        try:
            known = yield from on(name, self._known(theirs))
        except RedisUnusableError as error:
            self._refuse(name, error, theirs)
            return
        self.job_ids |= known
        self._done(known)
        for user, at in moved.items():
            try:
                self._routes[user].follow(at)
            except ShardsUnusableError as error:
                left = [place for place in theirs if self._users[place] == user and place in self.left]
                self._refuse(at, error, left)

    def _known(self, places: list[int]) -> Exchange[dict[int, str]]:
        """The job ids of what a shard has, or has delivered: this is the same call again, or the same dedupe key."""

        def ask(pipe: Any) -> None:
            for job in (self.left[place] for place in places):
                pipe.get(redis_key("dedupe", job.dedupe))
                pipe.exists(job_key(job.id))
                pipe.zscore(redis_key("delivered"), job.id)

        found = yield Commands(ask)
        known = {}
        for n, place in enumerate(places):
            earlier, exists, delivered = found[3 * n : 3 * n + 3]
            if earlier is not None and self.left[place].dedupe:
                known[place] = earlier.decode()
            elif exists or delivered is not None:
                known[place] = self.left[place].id
        return known

    def _refuse(self, name: str, error: RedisUnusableError, places: list[int]) -> None:
        self._bulk.errors[name] = error
        self.refused += places
        self._done(places)

    def _done(self, places: Iterable[int]) -> None:
        for place in places:
            del self.left[place]


def unusable_shards(
    errors: Mapping[str, RedisUnusableError], refused: Sequence[int] = (), tried: int = 0
) -> ShardsUnusableError:
    """What to raise where these shards could not be used, and this was not accepted of so many."""
    why = "; ".join(f"shard {name}: {error}" for name, error in errors.items())
    if tried > 1:
        why += f"; {len(refused)} of {tried} were not accepted, those of the others were"
    return ShardsUnusableError(why, tuple(errors), tuple(refused))
