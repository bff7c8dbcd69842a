"""Clients that find Redis through Sentinel and follow a failover: ``redis+sentinel://host:26379,…/service/0``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel, SentinelConnectionPool

from notifier.scripts.connection_wait import make_whole
from notifier.settings.redis_url import Servers
from notifier.store.sign_in import by_file, renewing


def primary(service: Servers, options: Mapping[str, Any], read_password: Callable[[], str | None]) -> redis.Redis:
    """A client that follows the primary, not yet connected. options: as of `redis.Redis`.

    read_password: returns the password of the sentinels, or raises SettingsError.
    """
    shared = {name: value for name, value in options.items() if name.startswith(("socket_", "retry", "ssl_"))}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        service.hosts, sentinel_kwargs=by_file({**shared, "ssl": service.tls}, read_password)
    )
    for each in sentinel.sentinels:
        make_whole(each)
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
    known = (sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels)
    return f"{pool.service_name} by Sentinel at " + ", ".join(f"{at['host']}:{at['port']}" for at in known)


class AsyncPrimary(redis.asyncio.Redis):
    """An asyncio client to the primary that a synchronous one follows; closing it closes its sentinels as well."""

    def __init__(self, pool: SentinelConnectionPool, options: Mapping[str, Any]) -> None:
        """`pool`: of the synchronous client. options: of its connections."""
        manager = pool.sentinel_manager
        known = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
        self._sentinel = AsyncSentinel(  # type: ignore[no-untyped-call]
            [(at["host"], at["port"]) for at in known],
            sentinel_kwargs={**manager.sentinel_kwargs, "retry": options["retry"]},
        )
        tls = issubclass(pool.connection_class, redis.SSLConnection)
        template = self._sentinel.master_for(pool.service_name, ssl=tls, **options)
        if tls:
            template.connection_pool.connection_class = renewing(template.connection_pool.connection_class)
        super().__init__(connection_pool=template.connection_pool)

    async def aclose(self, close_connection_pool: bool | None = True) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self._sentinel.sentinels:
            await sentinel.aclose()
