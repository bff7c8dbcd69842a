"""Where the workers of a team keep the one token that they all send with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.exceptions import RedisError

from notifier.errors import NotifierError
from notifier.scripts.keys import in_force, redis_key, under
from notifier.scripts.loader import Call, run_async, script


class TokenStoreError(NotifierError):
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The entry of the store: sealed, empty for nothing; times in microseconds since 1970 on the store's clock."""

    sealed: bytes = field(repr=False)
    made_us: int
    now_us: int


class TokenStore(Protocol):
    """One sealed token under each name. What is offered in place of the one that was seen is taken once."""

    async def look(self, name: str) -> Kept:
        """Return what stands there. Raises TokenStoreError where the store cannot be asked."""
        ...

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        """Put `sealed` there if `seen` still stands there; return what does then. Raises as `look`."""
        ...


class RedisTokenStore:
    """The store of all workers on one Redis; its clock decides how old a token is.

    redis: a `redis.asyncio.Redis` whose replies are bytes.
    """

    def __init__(self, redis: Any) -> None:
        self._redis, self._prefixes = redis, in_force()

    async def look(self, name: str) -> Kept:
        """See `TokenStore.look`."""
        return await self.offer(name, b"", b"", 0)

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        """See `TokenStore.offer`."""
        try:
            with under(self._prefixes):  # of those that share it, whichever partition's message asks
                keys, args = [redis_key("token", name)], (seen, sealed, made_us)
                return await run_async(self._redis, Call(script("token"), keys, args, lambda reply: Kept(*reply)))
        except (RedisError, OSError) as error:
            raise TokenStoreError(f"Redis does not keep the token: {type(error).__name__}") from None


class LocalTokenStore:
    """The store of a process that shares with nobody. clock: seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[bytes, int]] = {}

    async def look(self, name: str) -> Kept:
        """See `TokenStore.look`."""
        sealed, made_us = self._kept.get(name, (b"", 0))
        return Kept(sealed, made_us, int(self._clock() * 1_000_000))

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        """See `TokenStore.offer`."""
        if self._kept.get(name, (b"", 0))[0] == seen:
            self._kept[name] = sealed, made_us
        return await self.look(name)
