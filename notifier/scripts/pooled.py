"""Calls of scripts over a connection of redis-py's pool, past what its clients add: that takes a fifth of a call."""

from __future__ import annotations

from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from notifier.scripts.connection_wait import in_turn, in_turn_async
from notifier.scripts.loader import Call

T = TypeVar("T")


def send(client: Any, call: Call[T]) -> T:
    """Run a call; a server that lost its scripts is given the source again.

    Its `decode` is given texts as bytes, whatever the client makes of them.
    """
    words = call.words()

    def do() -> Any:
        try:
            return _exchange(client, "EVALSHA", call.script.sha, *words)
        except NoScriptError:
            client.script_load(call.script.source)
            return _exchange(client, "EVALSHA", call.script.sha, *words)

    return call.decode(in_turn(client, do))


async def send_async(client: Any, call: Call[T]) -> T:
    """Run a call on a `redis.asyncio.Redis`; as `send`."""
    words = call.words()

    async def do() -> Any:
        try:
            return await _exchange_async(client, "EVALSHA", call.script.sha, *words)
        except NoScriptError:
            await client.script_load(call.script.source)
            return await _exchange_async(client, "EVALSHA", call.script.sha, *words)

    return call.decode(await in_turn_async(client, do))


def _exchange(client: Any, *command: Any) -> Any:
    if type(client) is not redis.Redis or client.connection:
        return client.execute_command(*command, NEVER_DECODE=True)
    pool: Any = client.connection_pool
    connection = pool.get_connection()

    def once() -> Any:
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)

    try:
        # The client's own `retry` decides, as in its own commands.
        return connection.retry.call_with_retry(once, lambda _error: connection.disconnect())
    finally:
        pool.release(connection)


async def _exchange_async(client: Any, *command: Any) -> Any:
    if type(client) is not redis.asyncio.Redis or client.single_connection_client:
        return await client.execute_command(*command, NEVER_DECODE=True)
    pool: Any = client.connection_pool
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
