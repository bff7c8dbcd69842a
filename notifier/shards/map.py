"""Shards: several Redis servers, and which of them a user lives on. None of them knows of another.

Users are spread by rendezvous hashing (highest random weight: Thaler and Ravishankar, "Using name-based mappings to
increase hit rates", IEEE/ACM Transactions on Networking 6(1), 1998): the shard with the highest hash of its name and
the user's has the user. When one of N is added or removed, only its own share of the users moves.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from notifier.errors import RedisUnusableError, SettingsError, ShardsUnusableError
from notifier.scripts.keys import redis_key
from notifier.scripts.ownership import HERE, ON_THE_WAY
from notifier.store.connection import address, ask, connect, redis_of
from notifier.store.exchange import Commands, Exchange, exchange, on

if TYPE_CHECKING:
    from notifier.settings import RedisSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis


def weight(shard: str, user: str) -> int:
    """The hash by which a shard bids for a user: the same in every process, on every machine, for ever."""
    return int.from_bytes(blake2b(f"{shard}\0{user}".encode(), digest_size=8).digest(), "big")


def home(user: str, shards: Iterable[str]) -> str:
    """The one among the names of these shards on which a user lives. Of equal weights, the later name's counts."""
    return max((weight(shard, user), shard) for shard in shards)[1]


@dataclass(frozen=True, slots=True)
class Map:
    """Which shards there are. joining: users are being moved to these."""

    names: Sequence[str]
    joining: frozenset[str] = frozenset()

    @classmethod
    def of(cls, redis: RedisSettings) -> Self:
        """The map of a configuration."""
        return cls(
            [shard.name for shard in redis.shards], frozenset(shard.name for shard in redis.shards if shard.joining)
        )

    def home(self, user: str, *, without: Container[str] = ()) -> str:
        """Where a user lives, or is to live once the moves are done. without: shards that are found to be drained."""
        return home(user, [name for name in self.names if name not in without])

    def before(self, user: str) -> str:
        """Where a user lived before shards joined, and may live still."""
        return self.home(user, without=self.joining)


class Route:
    """Where a user is looked for: first where the map says, then where each shard says that the user has gone.

    waits: the user is on the way from there to another, which takes some milliseconds.
    """

    def __init__(self, of: Map, user: str) -> None:
        self.shard = of.before(user)
        self.leaves = self.shard != of.home(user)
        self.waits = False
        self._map = of
        self._user = user
        self._left: set[str] = set()

    def follow(self, at: str) -> None:
        """Go where the fence says; see `limiter.moves.MovedError`.

        Raises ShardsUnusableError where that is no shard of this configuration.
        """
        self.waits = at.startswith(ON_THE_WAY)
        if self.waits:
            return
        self._left.add(self.shard)
        if not at and self._left.issuperset(self._map.names):
            raise ShardsUnusableError("all shards are drained, so no shard is left for users", tuple(self._map.names))
        self.shard, self.leaves = at or self._map.home(self._user, without=self._left), False
        if self.shard not in self._map.names:
            raise ShardsUnusableError(
                f"a user has moved to the shard {self.shard!r}, which redis.shards does not list here", (self.shard,)
            )


@contextmanager
def connect_all(settings: Settings | RedisSettings) -> Iterator[Mapping[str, Redis]]:
    """A client to each shard by its name, not yet connected; with one Redis, its client under ''.

    Raises as `connect`.
    """
    config = redis_of(settings)
    with ExitStack() as stack:
        names = [shard.name for shard in config.shards]
        clients = {name: connect(config.shard(name)) for name in names} if names else {"": connect(config)}
        for client in clients.values():
            stack.enter_context(closing(client))
        yield clients


@contextmanager
def connect_home(settings: Settings, user: str) -> Iterator[tuple[str, Redis]]:
    """The name of the shard on which a user lives, and a client to it; '' and its client, where there is one Redis."""
    of = Map.of(settings.redis)
    with connect_all(settings) as clients:
        name = exchange(clients, find_home(of, user)) if of.names else ""
        with on_shard(name):
            yield name, clients[name]


def find_home(of: Map, user: str) -> Exchange[str]:
    """The name of the shard on which a user lives. Raises ShardsUnusableError."""
    name = of.before(user)
    while True:
        with on_shard(name):
            at = yield from on(name, _moved(user))
        to = at.decode() if isinstance(at, bytes) else HERE
        goes = name if to == HERE or to.startswith(ON_THE_WAY) else to or of.home(user)
        if goes == name:
            return name
        name = goes


def _moved(user: str) -> Exchange[Any]:
    (at,) = yield Commands(lambda pipe: pipe.hget(redis_key("moves"), user))
    return at


@contextmanager
def on_shard(name: str) -> Iterator[None]:
    """Name the shard in what is raised for it; with '', the one Redis, nothing is added."""
    try:
        yield
    except RedisUnusableError as error:
        raise (ShardsUnusableError(f"shard {name}: {error}", (name,)) if name else error) from error


def claim(redis: Redis, name: str) -> None:
    """See that a server is this shard's, and mark it so if it is nobody's.

    Raises SettingsError where it is another's: users would be looked for where they are not.
    """
    ask(lambda: redis.set(redis_key("shard"), name, nx=True))
    marked = ask(lambda: redis.get(redis_key("shard")))
    if isinstance(marked, bytes) and marked.decode() != name:
        raise SettingsError(
            f"redis.shards: the server at {address(redis)} is the shard {marked.decode()!r}, not {name!r}; "
            f"give it its name, or delete {redis_key('shard')} there if it was renamed while empty"
        )
