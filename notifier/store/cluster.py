"""Connections to one hash slot of a Redis Cluster: they follow the slot to whichever node owns it.

redis-py's `RedisCluster` would not do: it repeats a call whose answer was lost, which may lease or count twice, and it
refuses scripts in pipelines. These connections send a command again only if the node refused it before any of it ran
(MOVED, ASK, TRYAGAIN, CLUSTERDOWN, READONLY, LOADING), for some seconds. They never send ASKING: while a slot moves,
half of a script's keys may be on one node and half on the other.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from time import monotonic
from typing import Any, ClassVar, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from notifier.scripts.connection_wait import make_whole
from notifier.scripts.loader import finished, settled
from notifier.settings.redis_url import Servers
from notifier.store.sign_in import async_class

Node = tuple[str, int]

# MovedError is an AskError.
REFUSALS: Final = (AskError, TryAgainError, ClusterDownError, ReadOnlyError, BusyLoadingError)
SILENT: Final = (RedisConnectionError, RedisTimeoutError, ClusterDownError, OSError, TimeoutError)
TRIES: Final = 25  # with these pauses, some two seconds in all
REST_S: Final = 2.0
OVERDUE: Final = "overdue"  # the message of a cancellation at a call's deadline
BACKOFF: Final = ExponentialBackoff(cap=0.1, base=0.01)
_MULTI: Final = b"*1\r\n$5\r\nMULTI"


class NotTakenError(RedisConnectionError):
    """The node has refused a call before any of it ran, so the call may be sent again."""


class NotAClusterError(ResponseError):
    """A node is in no cluster, or does not let this user run CLUSTER SLOTS."""


class Owner:
    """The node that owns the slot of a hash tag, as far as is known. All connections of a client share one Owner.

    known: that node. nodes: all known nodes. siblings: the owners of all slots of the fleet. free: the idle connections
    of all siblings, by process and node. The siblings share the last three. silent: when a node last failed to answer,
    by the monotonic clock; the whole process shares it. rest_s: how long nobody waits for such a node again. So a
    caller that asks many partitions in turn waits for it once.
    """

    silent: ClassVar[dict[Node, float]] = {}

    def __init__(self, tag: str, seeds: Sequence[Node], beside: Owner | None = None) -> None:
        """beside: another owner of the same fleet."""
        self.tag = tag
        self.slot: int = key_slot(tag.encode())
        self.seeds = tuple(seeds)
        self.known: Node | None = None
        self.rest_s = REST_S
        self.nodes: list[Node] = beside.nodes if beside else list(seeds)
        self.siblings: list[Owner] = beside.siblings if beside else []
        self.free: dict[int, dict[Node, list[Any]]] = beside.free if beside else {}
        self.siblings.append(self)

    def free_here(self) -> dict[Node, list[Any]]:
        """The free connections of this process. The child of a fork forgets those of its parent."""
        if (pid := os.getpid()) not in self.free:
            self.free.clear()
        return self.free.setdefault(pid, {})

    def candidates(self) -> Sequence[Node]:
        """The nodes to ask, in this order: nodes that failed to answer come last."""
        return sorted(self.nodes, key=lambda node: self.silent.get(node, 0.0))

    def rests(self) -> bool:
        """Whether the known owner failed to answer a moment ago, so that nobody is to wait for it."""
        return self.known in self.silent and monotonic() < self.silent[self.known] + self.rest_s

    def failed(self, node: Node, error: BaseException) -> None:
        """Note that a connection to a node failed. The next call looks for the owner, as a replica may have taken over.

        A node that refuses connections is not silent: it keeps nobody waiting.
        """
        self.known = None
        if isinstance(error, TimeoutError) or not isinstance(error, OSError | RedisConnectionError):
            self.silent[node] = monotonic()

    def read(self, slots: Any, asked: Node) -> Node | None:
        """Learn the owners from the answer to CLUSTER SLOTS; return this slot's, or None if it has none."""
        self.known, nodes = None, []
        for first, last, *served in slots:
            places = [(node[0].decode() or asked[0], int(node[1])) for node in served]
            nodes += places
            for owner in self.siblings:
                if owner.known is None and first <= owner.slot <= last:
                    owner.known = places[0]
        self.nodes[:] = dict.fromkeys([*nodes, *self.nodes])
        return self.known

    def note(self, refusal: Exception) -> None:
        """Learn the owner from a refusal. ASK and TRYAGAIN change nothing: the call waits until the slot has moved."""
        if isinstance(refusal, MovedError):
            self.known = (refusal.host, refusal.port) if refusal.host else None
        elif not isinstance(refusal, AskError | TryAgainError):
            self.known = None

    def unknown(self) -> RedisConnectionError:
        nodes = ", ".join(f"{host}:{port}" for host, port in self.seeds)
        return RedisConnectionError(f"no node of the cluster at {nodes} tells who has slot {self.slot}")


def _meaning(refusal: Exception) -> str:
    if isinstance(refusal, MovedError):
        return "has moved to another node"
    if isinstance(refusal, AskError | TryAgainError):
        return "is being moved to another node"
    return "has no primary now" if isinstance(refusal, ClusterDownError) else f"is not served: {refusal}"


class _Following:
    """Base of these connections, of both kinds of client. A command's first reply tells whether any of it ran.

    times: how often it has connected, to any node.
    """

    times = 0

    def __init__(self, *, owner: Owner, **kwargs: Any) -> None:
        self.owner, self._given = owner, kwargs
        self._took_none, self._in_multi = True, False
        super().__init__(**kwargs)

    async def _connect(self: Any) -> Any:  # not `connect`: redis-py's retry does not call `connect`
        await self._find_place()
        self.times += 1
        try:
            return await settled(super()._connect())  # type: ignore[misc]
        except (OSError, RedisConnectionError) as error:
            self.owner.failed((self.host, self.port), error)
            raise

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        first = command[0] if isinstance(command, list | tuple) and command else command
        await settled(super().send_packed_command(command, check_health))  # type: ignore[misc]
        # Afterwards: it may have connected before, and the replies to that are not this command's.
        self._in_multi = isinstance(first, bytes) and first.startswith(_MULTI)
        self._took_none = True

    async def read_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = monotonic()
        try:
            reply = await settled(super().read_response(*args, **kwargs))  # type: ignore[misc]
        except (RedisTimeoutError, asyncio.CancelledError) as error:
            # If the deadlines of the call and the socket end at the same moment, the cancellation loses its message.
            is_late = OVERDUE in error.args or monotonic() - began >= (self.socket_timeout or math.inf)
            if is_late or isinstance(error, RedisTimeoutError):
                self.owner.failed((self.host, self.port), error)
            raise
        except (*REFUSALS, ResponseError) as refusal:
            # UNBLOCKED: a primary that becomes a replica ends blocking commands, and has given them nothing.
            if not isinstance(refusal, REFUSALS) and not str(refusal).startswith("UNBLOCKED"):
                raise
            await settled(self.disconnect())
            raise self._refused(refusal) from refusal
        # A command queued in MULTI has not run. EXEC answers with a list.
        if not self._in_multi or isinstance(reply, list):
            self._took_none = False
        return reply

    def _refused(self, refusal: Exception) -> Exception:
        if isinstance(refusal, AskError) and refusal.slot_id != self.owner.slot:  # a sibling's, see `together`
            return RedisConnectionError(f"slot {refusal.slot_id} of the cluster {_meaning(refusal)}")
        self.owner.note(refusal)
        kind = NotTakenError if self._took_none else RedisConnectionError
        return kind(f"slot {self.owner.slot} of the cluster {_meaning(refusal)}")

    async def _find_place(self: Any) -> None:
        if self.owner.rests():
            self.owner.known = None  # another node may own the slot by now
        self.host, self.port = self.owner.known or await self._find_owner()
        if self.owner.rests():
            why = OSError(0, "It did not answer a moment ago")  # as of any that cannot be connected to
            raise RedisTimeoutError(f"Error connecting to {self.host}:{self.port}. {why.strerror}") from why

    async def _find_owner(self: Any) -> Node:
        for node in self.owner.candidates():
            retry = self.retry_by(BACKOFF, 0)
            connection = self.plain(**{**self._given, "host": node[0], "port": node[1], "retry": retry})
            try:
                await settled(connection.connect())
                await settled(connection.send_command("CLUSTER", "SLOTS"))
                found: Node | None = self.owner.read(await settled(connection.read_response()), node)
            except AuthenticationError:
                raise
            except (*SILENT, asyncio.CancelledError) as error:
                self.owner.silent[node] = monotonic()
                if isinstance(error, asyncio.CancelledError):
                    raise
                continue
            except ResponseError as error:
                raise NotAClusterError(str(error)) from error
            finally:
                await settled(connection.disconnect())
            if found is not None:
                return found
        raise self.owner.unknown()


class _Sync(_Following):
    retry_by = Retry

    def _connect(self) -> Any:
        return finished(super()._connect())

    def send_packed_command(self, *args: Any, **kwargs: Any) -> Any:
        return finished(super().send_packed_command(*args, **kwargs))

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        return finished(super().read_response(*args, **kwargs))


class _Async(_Following):
    retry_by = AsyncRetry


@cache
def following(plain: type) -> type:
    """A subclass whose connections go to whichever node owns the slot of their `owner`."""
    kind = _Async if issubclass(plain, redis.asyncio.Connection) else _Sync
    return type(f"Following{plain.__name__}", (kind, plain), {"plain": plain})


class _Free(Sequence[Any]):
    """The free connections of one client's pool. The clients of a fleet share all; a client sees those to its owner."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def _to_owner(self) -> list[Any]:
        known = self._owner.known
        return self._owner.free_here().get(known, []) if known and not self._owner.rests() else []

    def __getitem__(self, index: Any) -> Any:
        return self._to_owner()[index]

    def __len__(self) -> int:
        return len(self._to_owner())

    def pop(self) -> Any:
        """Take one. Raises IndexError."""
        connection = self._to_owner().pop()
        connection.owner = self._owner
        return connection

    def append(self, connection: Any) -> None:
        """Put one back, unless it is known to be closed."""
        if getattr(connection, "is_connected", True):
            self._owner.free_here().setdefault((connection.host, connection.port), []).append(connection)


class _Pool(redis.ConnectionPool):
    def reset(self) -> None:
        super().reset()
        self._available_connections: Any = _Free(self.connection_kwargs["owner"])


class _AsyncPool(redis.asyncio.ConnectionPool):
    def reset(self) -> None:
        super().reset()  # type: ignore[no-untyped-call]
        self._available_connections: Any = _Free(self.connection_kwargs["owner"])


def client_of(tag: str, nodes: Servers, options: Mapping[str, Any], beside: redis.Redis | None = None) -> redis.Redis:
    """A client to whichever node owns the slot of a hash tag, not yet connected. options: as of `redis.Redis`.

    beside: a client of the same fleet; the two share free connections and what they know of the nodes.
    """
    plain = redis.SSLConnection if nodes.tls else redis.Connection
    given = {name: value for name in ("username", "password") if (value := getattr(nodes, name)) is not None}
    retry = Retry(BACKOFF, TRIES, supported_errors=(NotTakenError,))
    owner = Owner(tag, nodes.hosts, owner_of(beside))
    kwargs = {**options, **given, "owner": owner, "retry": retry}
    return redis.Redis.from_pool(_Pool(connection_class=following(plain), **kwargs))


def async_client_of(
    pool: redis.ConnectionPool, options: Mapping[str, Any], beside: redis.asyncio.Redis | None = None
) -> redis.asyncio.Redis:
    """See `client_of`. pool: of a synchronous client to the same slot. options: of an asyncio connection."""
    plain = async_class(pool.connection_class)
    retry = AsyncRetry(BACKOFF, TRIES, supported_errors=(NotTakenError,))
    owner = pool.connection_kwargs["owner"]
    kwargs = {**options, "owner": Owner(owner.tag, owner.seeds, owner_of(beside)), "retry": retry}
    return make_whole(redis.asyncio.Redis.from_pool(_AsyncPool(connection_class=following(plain), **kwargs)))


def owner_of(client: Any) -> Owner | None:
    """The owner that a client follows; None for a client of another kind, and for no client."""
    owner: Owner | None = client and client.connection_pool.connection_kwargs.get("owner")
    return owner


def is_followed(pool: Any) -> bool:
    """Whether a pool's connections follow the owner of a slot."""
    return "owner" in pool.connection_kwargs


def times_connected(client: Any) -> int:
    """How often the single connection of a client has connected; 0 if it never changes its node."""
    times: int = getattr(client.connection, "times", 0)
    return times


def described(pool: Any) -> str:
    owner: Owner = pool.connection_kwargs["owner"]
    return f"slot {owner.slot} of the cluster at " + ", ".join(f"{host}:{port}" for host, port in owner.seeds)
