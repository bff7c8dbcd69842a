"""The store in which the workers of a team keep the one token that they all send with."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from redis.exceptions import RedisError

from notifier.errors import NotifierError
from notifier.scripts.keys import redis_key, under
from notifier.scripts.loader import Call, run_async, script
from notifier.store.partitions import Partition


class TokenStoreError(NotifierError):
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry of the store; sealed is empty if there is none. Times: microseconds since 1970 on the store's clock."""

    sealed: bytes = field(repr=False)
    made_us: int
    now_us: int


class TokenStore(Protocol):
    """One sealed token under each name. Of several offers to replace the same token, the store takes one."""

    async def look(self, name: str) -> Kept:
        """Return the entry. Raises TokenStoreError if the store does not answer."""
        ...

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        """Replace `seen` by `sealed` if it is still the entry; return the entry after that. Raises as `look`."""
        ...


class RedisTokenStore:
    """The store of all workers on one Redis, or on the partitions of a cluster; its clock decides how old a token is.

    partitions: with asyncio clients whose replies are bytes. The first keeps the token for all. While its node does not
    answer, another one keeps it, the same for all workers.
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        first, *others = partitions
        random.Random(len(others)).shuffle(others)  # noqa: S311 - so that the next is seldom on the same node
        self._partitions = deque((first, *others))

    async def look(self, name: str) -> Kept:
        return await self.offer(name, b"", b"", 0)

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        at = self._partitions[0]
        try:
            with under(at.prefixes):
                keys, args = [redis_key("token", name)], (seen, sealed, made_us)
                return await run_async(at.client, Call(script("token"), keys, args, lambda reply: Kept(*reply)))
        except BaseException as error:  # also a cancelled wait, when the caller's timeout has passed
            self._partitions.rotate(-1)
            if isinstance(error, RedisError | OSError):
                raise TokenStoreError(f"Redis does not keep the token: {type(error).__name__}") from None
            raise


class LocalTokenStore:
    """The store of one process, shared with no other. clock: seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[bytes, int]] = {}

    async def look(self, name: str) -> Kept:
        sealed, made_us = self._kept.get(name, (b"", 0))
        return Kept(sealed, made_us, int(self._clock() * 1_000_000))

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        if self._kept.get(name, (b"", 0))[0] == seen:
            self._kept[name] = sealed, made_us
        return await self.look(name)
