"""Partitions: a fleet in several hash slots of a Redis Cluster. All keys of a user are in one of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from redis.exceptions import RedisError

from notifier.errors import InvalidNotificationError, RedisUnusableError, SettingsError
from notifier.notification.notification import check_user
from notifier.scripts.keys import Prefixes, redis_key, under
from notifier.settings import redis_url
from notifier.store.aio import async_of
from notifier.store.connection import ask, client_of, is_forbidden, use_keys_of
from notifier.store.exchange import Commands, Exchange, Item, Search, exchange, go_on, iterate
from notifier.store.layout import check_layout
from notifier.store.tags import HASH, number_of, prefixes_of

if TYPE_CHECKING:
    from notifier.settings import RedisSettings, Settings

T = TypeVar("T")

_IN_JOB_ID: Final = re.compile(r"p(\d\d)-")


@dataclass(slots=True)
class Partition:
    """One partition, and a client to whichever node owns its slot. prefixes: None without a cluster.

    is_checked: whether the cluster is known to have as many partitions as the configuration.
    """

    number: int
    count: int
    prefixes: Prefixes | None
    client: Any
    is_checked: bool = False

    def checked(self, steps: Exchange[T]) -> Exchange[T]:
        """Run an exchange here, after the number of partitions was checked once. Raises SettingsError."""
        yield from self.agree(claims=True)
        return (yield from steps)

    def claim(self) -> None:
        """Write the layout of the keys and the number of partitions into a Redis that has none, perhaps not any more.

        Call it under `prefixes`. Raises RedisUnusableError or SettingsError if Redis has others.
        """
        self.is_checked = self.prefixes is None  # until it is checked anew
        check_layout(self.client)
        exchange(self.client, self.agree(claims=True))

    def agree(self, *, claims: bool = False) -> Exchange[None]:
        """Check once that Redis has this number of partitions. claims: write the number if Redis has none yet.

        Raises SettingsError if Redis has another one.
        """
        if self.is_checked:
            return
        key, told = redis_key("partition"), f"{self.number} of {self.count}, hash {HASH}"
        (found,) = yield Commands(lambda pipe: pipe.get(key))
        try:
            if found is None and claims:
                _, found = yield Commands(lambda pipe: (pipe.set(key, told, nx=True), pipe.get(key)))
        except RedisError as error:
            if not is_forbidden(error):  # a user with the right to read alone claims nothing
                raise
        if found not in {None, told.encode()}:
            raise SettingsError(
                f"redis.partitions: this is partition {told}, but the cluster has it as"
                f" {found.decode(errors='replace')}. The number of partitions is fixed at the first start: write that"
                " of the cluster, or use another redis.prefix"
            )
        self.is_checked = found is not None


class Partitions(tuple[Partition, ...]):
    """All partitions of a fleet. A fleet on one Redis has one."""

    __slots__ = ()

    @classmethod
    def around(cls, client: Any) -> Self:
        """Return `client` if it is all partitions already, or else the one partition of this client of redis-py."""
        return client if isinstance(client, cls) else cls([Partition(0, 1, None, client, is_checked=True)])

    def of_user(self, user: str) -> Partition:
        return self[number_of(user, len(self)) if len(self) > 1 else 0]

    def of_job(self, job_id: str) -> Sequence[Partition]:
        """Where a job may be: an id of `job_id` shows its partition, any other id may be in each."""
        found = _IN_JOB_ID.match(job_id) if len(self) > 1 else None
        return self if found is None else self[int(found[1]) : int(found[1]) + 1]

    def job_id(self, user: str, wanted: str | None) -> str:
        """A job id: the wanted one, or a random one that shows the partition where there are several.

        Raises InvalidNotificationError if the wanted id shows another partition than the user's.
        """
        if len(self) == 1:
            return wanted or secrets.token_hex(10)
        number = self.of_user(user).number
        if wanted is None:
            return f"p{number:02}-{secrets.token_hex(10)}"
        if self.of_user(user) not in self.of_job(wanted):
            why = f"begins like the ids that show a partition, and that of this user would begin with 'p{number:02}-'"
            raise InvalidNotificationError("job_id", why)
        return wanted

    def ask_any(self, question: Callable[[Any], T]) -> T:
        """Ask one partition after the other until one answers, for something that is the same in all.

        Raises RedisUnusableError if none answers.
        """
        *others, last = self
        for at in others:
            with suppress(RedisUnusableError), under(at.prefixes):
                return ask(partial(question, at.client))
        with under(last.prefixes):
            return ask(partial(question, last.client))

    def agree(self) -> None:
        """Check the number of partitions in the first one that answers; write nothing. Raises SettingsError."""
        for at in self:
            with suppress(RedisUnusableError), under(at.prefixes):
                exchange(at.client, at.agree())
                return

    def close(self) -> None:
        for at in self:
            at.client.close()

    @contextmanager
    def at(self, user: str) -> Iterator[Any]:
        """The client of a user's partition; the block names keys by its prefixes."""
        partition = self.of_user(user)
        with under(partition.prefixes):
            yield partition.client


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them, such as 0-15, 20."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(str(some[0]) if len(some) == 1 else f"{some[0]}-{some[-1]}" for some in found)


def connect_all(config: RedisSettings) -> Partitions:
    """Clients to all partitions of a fleet, not yet connected. Raises as `connect`."""
    return _all_of(config, client_of)


def connect_all_async(config: RedisSettings) -> Partitions:
    return _all_of(config, async_of)


@contextmanager
def opened_all(settings: Settings) -> Iterator[Partitions]:
    """All partitions of a fleet, or the one that the settings name; closed at the end of the block.

    Raises as `connect`, and SettingsError if the cluster has another number of them.
    """
    partitions, one = connect_all(settings.redis), settings.redis.partition
    with closing(partitions):
        partitions.agree()
        yield partitions if one is None else Partitions([partitions[one]])


@contextmanager
def opened(settings: Settings, user: str) -> Iterator[Any]:
    """A client of the user's partition; the block names keys by its prefixes. Raises as `opened_all`, `check_user`."""
    check_user(user)
    with closing(connect_all(settings.redis)) as partitions:
        partitions.agree()
        with partitions.at(user) as client:
            yield client


def each_opened(settings: Settings) -> Iterator[Partition]:
    """As `opened_all`, one partition after the other; the loop's body names keys by its prefixes."""
    with opened_all(settings) as partitions:
        for at in partitions:
            with under(at.prefixes):
                yield at


def search_at(at: Partition, find: Callable[[], Search[T]]) -> Iterator[T]:
    """Iterate over what a search finds in a partition. The loop's body names keys by the prefixes of the caller.

    Raises RedisUnusableError if Redis fails.
    """
    return iterate(search_at_async(at, find))


async def search_at_async(at: Partition, find: Callable[[], Search[T]]) -> AsyncGenerator[T]:
    with under(at.prefixes):
        steps = find()
    with closing(steps):
        while True:
            with under(at.prefixes):
                found = await go_on(at.client, steps)
            if not isinstance(found, Item):
                return
            yield found.value


def _all_of(config: RedisSettings, connect: Callable[..., Any]) -> Partitions:
    if config.partitions == 1:
        use_keys_of(config)
    if not redis_url.is_cluster(config.url):
        return Partitions.around(connect(config))
    found: list[Partition] = []
    for number in range(config.partitions):
        client = connect(config.at(number), found[0].client if found else None)
        found.append(Partition(number, config.partitions, prefixes_of(config, number), client))
    return Partitions(found)
