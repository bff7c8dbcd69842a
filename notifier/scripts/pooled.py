"""Commands over a connection of redis-py's pool, past what its clients add: that takes a fifth of a call."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio


def send(client: Any, *command: Any) -> Any:
    """Return the reply to a command, with texts as bytes whatever the client makes of them; asyncio's is awaited.

    The client's own `retry` decides whether it is sent once more, as in its own commands.
    """
    if type(client) is redis.asyncio.Redis and not client.single_connection_client:
        return _send_async(client.connection_pool, command)
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


async def _send_async(pool: Any, command: tuple[Any, ...]) -> Any:
    connection = await pool.get_connection()

    async def once() -> Any:
        await connection.send_command(*command)
        return await connection.read_response(disable_decoding=True)

    async def fail(_error: Exception) -> None:
        await connection.disconnect()

    try:
        return await connection.retry.call_with_retry(once, fail)
    finally:
        await pool.release(connection)
