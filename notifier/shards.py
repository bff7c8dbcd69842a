"""Shards: several Redis servers, and which of them a user lives on. None of them knows of another.

Users are spread by rendezvous hashing (highest random weight: Thaler and Ravishankar, "Using name-based mappings to
increase hit rates", IEEE/ACM Transactions on Networking 6(1), 1998): the shard with the highest hash of its name and
the user's has the user. When one of N is added or removed, only its own share of the users moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Self

from notifier.connection import address, ask, connect
from notifier.errors import RedisUnusableError, SettingsError, ShardsUnusableError
from notifier.settings import RedisSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

NAME_KEY: Final = "notifier:shard"  # string: whose server this is, so that two that were mixed up are found out


def weight(shard: str, user: str) -> int:
    """The hash by which a shard bids for a user: the same in every process, on every machine, for ever."""
    return int.from_bytes(blake2b(f"{shard}\0{user}".encode(), digest_size=8).digest(), "big")


def home(user: str, shards: Iterable[str]) -> str:
    """The one among the names of these shards on which a user lives. Of equal weights, the later name's counts."""
    return max((weight(shard, user), shard) for shard in shards)[1]


@dataclass(frozen=True, slots=True)
class Map:
    """Which shards there are. joining: users are being moved to these; draining: from these."""

    names: Sequence[str]
    joining: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()

    @classmethod
    def of(cls, redis: RedisSettings) -> Self:
        """The map of a configuration."""
        return cls(
            [shard.name for shard in redis.shards],
            frozenset(shard.name for shard in redis.shards if shard.joining),
            frozenset(shard.name for shard in redis.shards if shard.draining),
        )

    def home(self, user: str, *, without: str = "") -> str:
        """Where a user lives, or is to live once the moves are done. without: a shard that is found to be draining."""
        return home(user, [name for name in self.names if name not in self.draining and name != without])

    def before(self, user: str) -> str:
        """Where a user lived before the moves, and may live still."""
        return home(user, [name for name in self.names if name not in self.joining])


@contextmanager
def connect_all(settings: Settings | RedisSettings) -> Iterator[Mapping[str, Redis]]:
    """A client to each shard by its name, not yet connected; with one Redis, its client under ''.

    Raises as `connect`.
    """
    config = settings.redis if isinstance(settings, Settings) else settings
    with ExitStack() as stack:
        names = [shard.name for shard in config.shards]
        clients = {name: connect(config.shard(name)) for name in names} if names else {"": connect(config)}
        for client in clients.values():
            stack.enter_context(closing(client))
        yield clients


@contextmanager
def connect_home(settings: Settings, user: str) -> Iterator[tuple[str, Redis]]:
    """The name of the shard on which a user lives, and a client to it; '' and its client, where there is one Redis."""
    name = Map.of(settings.redis).home(user) if settings.redis.shards else ""
    with on_shard(name), closing(connect(settings.redis.shard(name))) as client:
        yield name, client


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
    ask(lambda: redis.set(NAME_KEY, name, nx=True))
    marked = ask(lambda: redis.get(NAME_KEY))
    if isinstance(marked, bytes) and marked.decode() != name:
        raise SettingsError(
            f"redis.shards: the server at {address(redis)} is the shard {marked.decode()!r}, not {name!r}; "
            f"give it its name, or delete {NAME_KEY} there if it was renamed while empty"
        )
