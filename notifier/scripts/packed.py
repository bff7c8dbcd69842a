"""Calls of a script that are packed by their caller, and go to Redis through as little of redis-py as is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from notifier.scripts.connection_wait import in_turn, in_turn_async
from notifier.scripts.loader import Script

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PackedCall(Generic[T]):
    """One call of a script. wire: the whole command as it goes over the connection, see `pack_call`.

    decode: is given texts as bytes, whatever the client makes of them.
    """

    script: Script
    wire: bytes
    decode: Callable[[Any], T]


def pack(values: Iterable[str | bytes | int]) -> bytes:
    """Arguments of a command, as Redis's protocol has them."""
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


def pack_call(
    script: Script, keys: int, args: int, packed: bytes, declared: Sequence[str | bytes] | None = None
) -> bytes:
    """The command that calls a script with so many keys and arguments of its own, which stand packed in `packed`.

    declared: what a script that names keys is to declare, if not what is in force.
    """
    declared = declared if declared is not None and script.names_keys else script.declares()
    keys += len(declared)
    first = pack([keys, *declared])
    return b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n%b%b" % (3 + keys + args, script.sha.encode(), first, packed)


def unpack(wire: bytes) -> list[Any]:
    """The words of a packed command; its name is text, as redis-py's client of a cluster wants it."""
    words, at = [], wire.index(b"\r\n") + 2
    while at < len(wire):
        begins = wire.index(b"\r\n", at) + 2
        ends = begins + int(wire[at + 1 : begins - 2])
        words.append(wire[begins:ends])
        at = ends + 2
    return [words[0].decode(), *words[1:]]


def send(client: Any, call: PackedCall[T]) -> T:
    """Run a call; a server that lost its scripts is given the source again."""

    def do() -> Any:
        try:
            return _exchange(client, call.wire)
        except NoScriptError:
            client.script_load(call.script.source)
            return _exchange(client, call.wire)

    return call.decode(in_turn(client, do))


async def send_async(client: Any, call: PackedCall[T]) -> T:
    """Run a call on a `redis.asyncio.Redis`; as `send`."""

    async def do() -> Any:
        try:
            return await _exchange_async(client, call.wire)
        except NoScriptError:
            await client.script_load(call.script.source)
            return await _exchange_async(client, call.wire)

    return call.decode(await in_turn_async(client, do))


def _exchange(client: Any, wire: bytes) -> Any:
    if type(client) is not redis.Redis or client.connection:
        return client.execute_command(*unpack(wire), NEVER_DECODE=True)
    pool: Any = client.connection_pool
    connection = pool.get_connection()

    def once() -> Any:
        connection.send_packed_command([wire])
        return connection.read_response(disable_decoding=True)

    try:
        # The client's own `retry` decides, as in its own commands.
        return connection.retry.call_with_retry(once, lambda _error: connection.disconnect())
    finally:
        pool.release(connection)


async def _exchange_async(client: Any, wire: bytes) -> Any:
    if type(client) is not redis.asyncio.Redis or client.single_connection_client:
        return await client.execute_command(*unpack(wire), NEVER_DECODE=True)
    pool: Any = client.connection_pool
    connection = await pool.get_connection()

    async def once() -> Any:
        await connection.send_packed_command([wire])
        return await connection.read_response(disable_decoding=True)

    async def fail(_error: Exception) -> None:
        await connection.disconnect()

    try:
        return await connection.retry.call_with_retry(once, fail)
    finally:
        await pool.release(connection)
