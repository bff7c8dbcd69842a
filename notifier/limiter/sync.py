"""Limiter: exact rolling windows, a gap and bursts for any key, in one round trip to Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError, SlotNotCoveredError
from redis.retry import Retry

from notifier.errors import URL_SIGNS, SettingsError
from notifier.limiter.base import Asking, KeyLimiter
from notifier.limiter.calls import UNSETTLED, RedisRequests, tag_of
from notifier.limiter.outage import OnError, Outage, is_of_its_keys, seconds_of, unreachable
from notifier.limiter.plans import StaleError
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Limits
from notifier.limiter.requests import Mode, Request, Timeout
from notifier.rules.zones import DEFAULT_ZONE
from notifier.scripts.connection_wait import in_turn, make_whole
from notifier.scripts.keys import PREFIX
from notifier.scripts.loader import Call, finished, run, settled

if TYPE_CHECKING:
    from notifier.store.live import LiveSettings
    from notifier.store.live_limits import LiveLimits

T = TypeVar("T")
OF_CLUSTER: Final = {"protocol": 2, "require_full_coverage": False}
NOT_SHARED: Final = ("host", "port", "connection_class")  # options that each node of a cluster has of its own
AWAY: Final = (RedisError, RedisClusterException, OSError)
MAX_AT_ONCE: Final = 500  # keys in one call: Redis serves nobody else meanwhile


class Options(TypedDict, total=False):
    """Options of a limiter in Redis, see its constructor."""

    on_error: OnError
    processes: int
    usage_keep: str | timedelta | None
    zone: str
    clock: str


class OwnOptions(Options, total=False):
    """Options of a limiter without a configuration."""

    limits: Limits | None
    prefix: str


class InRedis(Asking):
    """The parts that `Limiter` and `AsyncLimiter` share."""

    _requests: RedisRequests
    _module: ClassVar[str]
    _client: ClassVar[Any]
    _others: ClassVar[tuple[type, ...]]  # clients of the other module
    _cluster: ClassVar[Any]  # makes a client from nodes and options
    _retry: ClassVar[type[Any]] = Retry
    _is_awaited: ClassVar[bool] = False
    _live: LiveSettings | None = None  # if the limiter follows a configuration

    def __init__(
        self,
        client: Any,
        *,
        namespace: str,
        limits: Limits | None = None,
        prefix: str = PREFIX,
        on_error: OnError = "raise",
        processes: int = 1,
        usage_keep: str | timedelta | None = None,
        zone: str = DEFAULT_ZONE,
        clock: str = "",
    ) -> None:
        """client: a `redis.Redis` or `redis.RedisCluster`; for AsyncLimiter, one of `redis.asyncio`. As many calls run
        at once as its pool has connections, at most 100; other calls wait for its socket_timeout, or for 5 s.

        limits: rates by name, or a function that returns the current ones. prefix: the beginning of all names of keys;
        with a configuration it is `redis.prefix`.

        on_error: the answer if Redis cannot be asked: "raise" LimiterUnreachableError, "hold" (fail closed), "permit"
        (fail open), or "memory": each of `processes` processes limits by itself, by its share of the rates. Except with
        "raise", one call in a while tries whether Redis is back, and the other calls do not wait.

        usage_keep: count totals, ranks and series, and keep them for this time after a key's last use. zone: the time
        zone of calendar windows. clock: for tests.
        """
        in_cluster = isinstance(client, Cluster | redis.RedisCluster | redis.asyncio.RedisCluster)
        if isinstance(client, self._others) or not (in_cluster or hasattr(client, "execute_command")):
            given = f"{type(client).__module__}.{type(client).__qualname__}"
            raise TypeError(f"{type(self).__name__} takes a client of {self._module}, or from_url a URL; not {given}")
        self.redis: Any = client
        self._outage = Outage(on_error, processes, zone)
        self._requests = RedisRequests(
            namespace,
            prefix=prefix,
            in_cluster=in_cluster,
            limits=limits,
            usage_keep=usage_keep,
            zone=zone,
            clock=clock,
        )

    @classmethod
    def from_url(cls, url: str, *, namespace: str, timeout: Timeout = None, **options: Unpack[OwnOptions]) -> Self:
        """Make a limiter with the Redis of a URL, or with some nodes of a cluster: `redis+cluster://one:6379,two:6379`.

        timeout: for how long a call waits for the connection, and then for the answer, before `on_error` decides.
        Without it, redis-py's own timeout.
        options: those of the constructor.
        """
        if is_cluster(url):
            nodes, of_url = nodes_of(url)
            client = cls._cluster(nodes, OF_CLUSTER | within(timeout, cls._retry, tries=1) | of_url)
        else:
            client = make_whole(cls._client.from_url(checked_url(url), protocol=2, **within(timeout, cls._retry)))
        return cls(client, namespace=namespace, **options)

    @classmethod
    def from_config(cls, path: str | Path | None = None, *, namespace: str, **options: Unpack[Options]) -> Self:
        """Make a limiter with the Redis and the named `limits` of a configuration, found as by `Notifier.from_config`.

        From the first call on, a thread watches the file and the rates that `notifier config apply` publishes. Changes
        hold within two seconds. On a cluster each key has its own slot, however many partitions the fleet has.

        options: those of the constructor.

        Raises SettingsError if the configuration cannot be used.
        """
        live = follow(path)
        if is_cluster(url := live.redis.url):
            nodes, of_url = nodes_of(url)
            client = cls._cluster(nodes, OF_CLUSTER | within(None, cls._retry, tries=1) | live.of_connections(of_url))
        else:
            client = live.client(awaited=cls._is_awaited)
        limits = (lambda: live.known) if cls._is_awaited else live.now  # see `AsyncLimiter._look`
        made = cls(client, namespace=namespace, limits=limits, prefix=live.redis.prefix, **options)
        made._live = live.live
        return made

    async def _answer(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        """Answer each request. With a client that blocks, this awaits nothing: `finished` runs it to its end."""
        outage = self._outage
        answers: list[Permit | Hold] = []
        while len(answers) < len(requests):
            part = requests if mode == "every" else self._requests.first_of(requests[len(answers) :], MAX_AT_ONCE)
            breaker = outage.breaker(self._node_of(part[0]))
            if outage.on_error != "raise" and not breaker.lets_through():
                answers += outage.answers(part, mode, ahead)
                continue
            try:
                found = self._send(self.redis, self._requests.ask(part, mode, ahead))
                answers = [*answers, *(await found if self._is_awaited else found)]
            except StaleError as stale:
                answers += stale.answers
                requests = [*requests[: len(answers)], *self._requests.renewed(requests[len(answers) :], stale)]
            except AWAY as error:
                breaker.worked() if is_of_its_keys(error) else breaker.failed()
                answers = [*answers, *outage.answers(part, mode, ahead, error)]
                continue
            breaker.worked()
        return answers

    def _node_of(self, request: Request) -> str:
        """The name of the key's node in a cluster; '' if it is unknown, or no breaker needs it."""
        if self._outage.on_error != "raise" and self._requests.in_cluster:
            with suppress(*AWAY):
                return str(self.redis.get_node_from_key(tag_of(request.raw)).name)
        return ""

    def _send(self, client: Any, call: Call[T]) -> Any:
        return in_turn(client, partial(run, client, call))

    async def _called(self, call: Callable[[Any], T]) -> T:
        """Send the call of Redis that `call` builds, again and again until all usage is settled."""
        asked: Any = call(self._requests)
        try:
            while (reply := await settled(self._send(self.redis, asked))) is UNSETTLED:
                pass
        except AWAY as error:
            raise unreachable(error) from error
        answer: T = reply
        return answer


class _Cluster(redis.RedisCluster):
    def get_redis_connection(self, node: Any) -> Any:
        return make_whole(super().get_redis_connection(node))


class Cluster:
    """A `redis.RedisCluster` that connects at its first use, as other clients do, not when it is made."""

    def __init__(self, nodes: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> None:
        self._made: _Cluster | None = None
        self._nodes, self._options = nodes, options

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            node: Callable[..., Any] = redis.cluster.ClusterNode
            self._made = _Cluster(startup_nodes=[node(*each) for each in self._nodes], **self._options)
        return getattr(self._made, name)

    def get_node_from_key(self, key: bytes) -> Any:
        """As the client does, but without connecting: before the first use it raises SlotNotCoveredError."""
        if self._made is None:
            raise SlotNotCoveredError
        return self._made.get_node_from_key(key)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class Limiter(InRedis, KeyLimiter):
    """A limiter in Redis with its own namespace, shared by all processes and machines. It uses Redis's clock.

    It does not count users' push notifications. `acquire` returns a value; `check` raises; `wait` sleeps. A refused
    attempt does not count: if you ask again and again, the next permit does not come later.

    Rates: text such as "5/minute; 100/day", rules, a list of these, or the name of a configured limit.
    Timeout: text such as "2s", a timedelta, a number of seconds, or None for ever.
    Asked: (key, rates), or (key, rates, cost).
    KeyOf: and RatesOf and CostOf, of `limit`: the value, or a function of the call's arguments.
    """

    _module, _client, _cluster = "redis", redis.Redis, Cluster
    _others = redis.asyncio.Redis, redis.asyncio.RedisCluster

    def close(self) -> None:
        """Close the connections; so does `with`. A call afterwards opens them again."""
        self.redis.close()
        if self._live is not None:
            self._live.close()

    def _ask(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        return finished(self._answer(requests, mode, ahead))

    def _adjust(self, permit: Permit, used: int) -> bool:
        in_memory = self._outage.own(permit)
        return self._outage.memory.adjust(in_memory, used) if in_memory else super()._adjust(permit, used)

    def _run(self, call: Callable[[Any], T]) -> T:
        return finished(self._called(call))


def is_cluster(url: str) -> bool:
    return url.startswith(("redis+cluster://", "rediss+cluster://"))


def nodes_of(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """The nodes of a cluster's URL, and its options for all connections, such as the password."""
    scheme, _, nodes = url.partition("+cluster://")
    sign_in, at, hosts = nodes.rpartition("@")
    found = [*map(parse_url, [checked_url(f"{scheme}://{sign_in}{at}{host}") for host in hosts.split(",")])]
    of_url = {name: value for each in found for name, value in each.items() if name not in NOT_SHARED}
    return [(each["host"], each.get("port", 6379)) for each in found], {**of_url, "ssl": scheme == "rediss"}


def checked_url(url: str) -> str:
    """Return the URL. Raises ValueError, without a part of its password: the parser's own error quotes one."""
    with suppress(ValueError):
        if urlsplit(url).port != 0:
            return url
    raise ValueError(f"the URL of Redis must be such as redis://:password@host:6379/0; {URL_SIGNS}")


def follow(path: str | Path | None) -> LiveLimits:
    """The named rates of a configuration, and its Redis. Raises SettingsError if it cannot be used."""
    try:
        from notifier.store.live_limits import LiveLimits  # noqa: PLC0415 - only a configuration needs YAML, pydantic
    except ModuleNotFoundError:
        raise SettingsError("from_config is in another distribution: pip install push-throttle") from None
    return LiveLimits(path)


def within(timeout: Timeout, retry: type[Any] = Retry, *, tries: int = 0) -> dict[str, Any]:
    """Options of a client: a call waits no longer than `timeout` for a connection, and then for its answer.

    tries: how many retries. If the answer was lost, a retry may take a second permit. But only a retry lets the client
    of a cluster find the node that has taken over.
    """
    options: dict[str, Any] = {"retry": retry(NoBackoff(), tries, supported_errors=(RedisConnectionError,))}
    if timeout is not None:
        options |= dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds_of(timeout))
    return options
