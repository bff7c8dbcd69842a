"""Connections that leave a server which was demoted: it keeps them, and refuses to write.

A new connection finds the primary behind the same name. redis-py does so for Sentinel and a cluster.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError


def _is_of_replica(error: ResponseError) -> bool:
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)  # the second from a script of Redis 6.2


class Leaving:
    """A connection; put it before a class of `redis.connection`."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError as error:
            if _is_of_replica(error):
                self.disconnect()  # type: ignore[attr-defined]
            raise


class AsyncLeaving:
    """The same, before a class of `redis.asyncio.connection`."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError as error:
            if _is_of_replica(error):
                await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise


def leave_demoted(client: Any) -> None:
    """Have an asyncio client do so, with connections of any kind."""
    pool = client.connection_pool
    pool.connection_class = type(f"Leaving{pool.connection_class.__name__}", (AsyncLeaving, pool.connection_class), {})
