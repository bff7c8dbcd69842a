"""Sends commands over a connection of redis-py's pool. redis-py's own clients add a fifth to the time of a call."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.exceptions import RedisError


def send(client: Any, *command: Any) -> Any:
    """Return the reply to a command, with texts as bytes even if the client decodes replies; await it with asyncio.

    The client's own `retry` decides whether the command is sent again, as for its own commands.
    """
    if type(client) is redis.asyncio.Redis and not client.single_connection_client:
        return _send_async(client.connection_pool, command)
    if isinstance(client, redis.asyncio.RedisCluster):
        return _send_to_cluster(client, command)
    if type(client) is not redis.Redis or client.connection:
        return client.execute_command(*command, NEVER_DECODE=True)
    pool: Any = client.connection_pool
    connection = pool.get_connection()

    def once() -> Any:
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)

    try:
        return connection.retry.call_with_retry(once, lambda _error: connection.disconnect())
    finally:
        pool.release(connection)


async def _send_to_cluster(client: Any, command: tuple[Any, ...]) -> Any:
    try:
        return await client.execute_command(*command, NEVER_DECODE=True)
    except Exception as error:
        if not isinstance(error, RedisError):  # a signal handler may have left a reply unread
            for connection in [free for node in client.get_nodes() for free in node._free]:  # noqa: SLF001
                await connection.disconnect(nowait=True)
        raise


async def _send_async(pool: Any, command: tuple[Any, ...]) -> Any:
    connection = await pool.get_connection()

    async def once() -> Any:
        await connection.send_command(*command)
        return await connection.read_response(disable_decoding=True)

    try:
        return await connection.retry.call_with_retry(once, lambda _error: connection.disconnect())
    finally:
        await pool.release(connection)
