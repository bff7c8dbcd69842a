"""Connections that leave a demoted server: the server keeps connections, and refuses to write.

A new connection finds the primary behind the same host name. redis-py does this for Sentinel, `cluster` for a cluster.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError


def _is_of_replica(error: ResponseError) -> bool:
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)  # the text: in a script of Redis 6.2


class Leaving:
    """A mixin for connections; put it before a class of `redis.connection`."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError as error:
            if _is_of_replica(error):
                self.disconnect()  # type: ignore[attr-defined]
            raise


class AsyncLeaving:
    """The same mixin for a class of `redis.asyncio.connection`."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError as error:
            if _is_of_replica(error):
                await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise


def leave_demoted(client: Any) -> None:
    """Let an asyncio client leave a demoted server, whatever the class of its connections."""
    pool = client.connection_pool
    pool.connection_class = type(f"Leaving{pool.connection_class.__name__}", (AsyncLeaving, pool.connection_class), {})
