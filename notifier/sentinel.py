"""Redis found through Sentinel, so that a promoted replica is followed: ``redis+sentinel://host:26379,…/service/0``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.sentinel import Sentinel, SentinelConnectionPool

PORT: Final = 26379
FORM: Final = "redis+sentinel://host:26379,host:26379/service/0"

_URL: Final = re.compile(r"(rediss?)\+sentinel://(?:([^@/]*)@)?([^/@?#]+)/([\w.-]+)(?:/([0-9]{1,5})?)?")
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_PORTS: Final = range(1, 65_536)


@dataclass(frozen=True, slots=True)
class Service:
    """What a URL says: the sentinels (host, port), and the primary they know by `name`."""

    name: str
    sentinels: tuple[tuple[str, int], ...]
    database: int
    tls: bool
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def is_sentinel(url: str) -> bool:
    """Whether a URL means Sentinel."""
    return re.match(r"rediss?\+sentinel:", url) is not None


def parse(url: str) -> Service:
    """Read a URL; raises ValueError, without quoting it, for another form."""
    found = _URL.fullmatch(url)
    hosts = [_HOST.fullmatch(part) for part in found[3].split(",")] if found else []
    if found is None or not all(host and int(host[2] or PORT) in _PORTS for host in hosts):
        raise ValueError(f"is not the URL of a Redis behind Sentinel; write {FORM}")
    sentinels = tuple((host[1].strip("[]"), int(host[2] or PORT)) for host in hosts if host)
    username, _, password = (found[2] or "").partition(":")
    return Service(
        name=found[4],
        sentinels=sentinels,
        database=int(found[5] or 0),
        tls=found[1] == "rediss",
        username=unquote(username) or None,
        password=unquote(password) or None,
    )


def primary(service: Service, options: Mapping[str, Any], sentinel_password: str | None) -> redis.Redis:
    """A client to whatever is the primary, not yet connected. options: as of `redis.Redis`."""
    shared = {name: value for name, value in options.items() if name.startswith(("socket_", "retry"))}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        service.sentinels, sentinel_kwargs={**shared, "password": sentinel_password, "ssl": service.tls}
    )
    given = {"username": service.username, "password": service.password, "ssl": service.tls}
    client: redis.Redis = sentinel.master_for(  # type: ignore[no-untyped-call]
        service.name,
        redis_class=redis.Redis,
        db=service.database,
        **{name: value for name, value in given.items() if value is not None},
        **{name: value for name, value in options.items() if given.get(name) is None},
    )
    return client


def described(pool: SentinelConnectionPool) -> str:
    """Where a client of `primary` connects to, for people."""
    known = (sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels)
    return f"{pool.service_name} by Sentinel at " + ", ".join(f"{at['host']}:{at['port']}" for at in known)


class AsyncPrimary(redis.asyncio.Redis):
    """An asyncio client to the primary that a synchronous one follows; closing it closes its sentinels as well."""

    def __init__(self, pool: SentinelConnectionPool, options: Mapping[str, Any]) -> None:
        """`pool`: of the synchronous client. options: of `redis.asyncio.Redis`, as that one's."""
        manager = pool.sentinel_manager
        known = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        self._sentinel = AsyncSentinel(  # type: ignore[no-untyped-call]
            [(at["host"], at["port"]) for at in known], sentinel_kwargs={**manager.sentinel_kwargs, "retry": retry}
        )
        tls = issubclass(pool.connection_class, redis.SSLConnection)
        kept = {name: value for name, value in options.items() if name != "connection_pool"}
        template = self._sentinel.master_for(pool.service_name, ssl=tls, **kept)
        super().__init__(connection_pool=template.connection_pool)

    async def aclose(self, close_connection_pool: bool | None = True) -> None:
        """As of `redis.asyncio.Redis`."""
        await super().aclose(close_connection_pool)
        for sentinel in self._sentinel.sentinels:
            await sentinel.aclose()
