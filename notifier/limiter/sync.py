"""Limiter: exact rolling windows, a gap and bursts for any key, in one round trip to Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from notifier.errors import SettingsError
from notifier.limiter.base import Asking, KeyLimiter
from notifier.limiter.calls import UNSETTLED, RedisRequests
from notifier.limiter.outage import OnError, Outage, seconds_of, unreachable
from notifier.limiter.plans import StaleError
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Limits
from notifier.limiter.requests import Mode, Request, Timeout
from notifier.rules.zones import DEFAULT_ZONE
from notifier.scripts.loader import run
from notifier.scripts.packed import send
from notifier.scripts.turns import in_turn

if TYPE_CHECKING:
    from notifier.store.live_limits import LiveLimits

T = TypeVar("T")
MAX_AT_ONCE: Final = 500  # keys in one call: Redis serves nobody else meanwhile


class InRedis(Asking):
    """The parts of a limiter in Redis, whatever its client."""

    _requests: RedisRequests

    def __init__(
        self,
        client: Any,
        *,
        namespace: str,
        limits: Limits | None = None,
        on_error: OnError = "raise",
        processes: int = 1,
        usage_keep: str | timedelta | None = None,
        zone: str = DEFAULT_ZONE,
        clock: str = "",
    ) -> None:
        """client: a `redis.Redis`; of AsyncLimiter a `redis.asyncio.Redis`. As many calls run at once as its pool has
        connections, 100 at most; others wait, as long as its socket_timeout says, or 5 s.

        limits: policies by name, for `rates`, or a function that gives those of now.

        on_error: what to answer where Redis cannot be asked: "raise" LimiterUnreachableError, "hold" (closed), "permit"
        (open), or "memory": this process limits by itself, by its share of the rates among so many `processes`. Except
        with "raise" one call in a while tries whether Redis is back, and the others do not wait.

        usage_keep: count totals, ranks and series, known for so long after a key's last use. zone: whose
        days and months calendar windows go by. clock: for tests.
        """
        self.redis = client
        self._outage = Outage(on_error, processes, zone)
        self._requests = RedisRequests(namespace, limits=limits, usage_keep=usage_keep, zone=zone, clock=clock)


class Limiter(InRedis, KeyLimiter):
    """A limiter of its own namespace in Redis, shared by every process and machine; see `KeyLimiter`.

    It never touches what the workers count for users' push notifications. Time is Redis's.
    """

    @classmethod
    def from_url(cls, url: str, *, namespace: str, timeout: Timeout = None, **options: Any) -> Self:
        """A limiter on the Redis of a URL. timeout: for how long a call waits to be connected, and then for its answer,
        before `on_error` answers; redis-py's own, if none is given. options: as of the constructor.
        """
        more = within(timeout) if timeout is not None else {}
        return cls(redis.Redis.from_url(url, protocol=2, **more), namespace=namespace, **options)

    @classmethod
    def from_config(cls, path: str | Path | None = None, *, namespace: str, **options: Any) -> Self:
        """A limiter on the Redis of a configuration, found as `Notifier.from_config` does, with its `limits` by name.

        They are live: a changed file, or rates applied by `notifier config apply`, hold within two seconds. options: as
        of the constructor. Raises SettingsError where the configuration cannot be used.
        """
        live = follow(path)
        from notifier.store.connection import connect  # noqa: PLC0415 - as in `follow`

        return cls(connect(live.settings), namespace=namespace, limits=live.now, **options)

    def close(self) -> None:
        """See `KeyLimiter.close`."""
        self.redis.close()

    def _ask(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        outage = self._outage
        if not outage.lets_through():
            return outage.answers(requests, mode, ahead)
        answers: list[Permit | Hold] = []
        try:
            while len(answers) < len(requests):
                part = requests if mode == "every" else requests[len(answers) : len(answers) + MAX_AT_ONCE]
                try:
                    answers = [*answers, *send(self.redis, self._requests.ask(part, mode, ahead))]
                except StaleError as stale:
                    answers += stale.answers
                    requests = [*requests[: len(answers)], *self._requests.renewed(requests[len(answers) :], stale)]
        except RedisError as error:
            return outage.answers(requests, mode, ahead, error)
        outage.breaker.worked()
        return answers

    def adjust(self, permit: Permit, used: int) -> bool:
        """See `KeyLimiter.adjust`."""
        in_memory = self._outage.own(permit)
        return self._outage.memory.adjust(in_memory, used) if in_memory else super().adjust(permit, used)

    def _run(self, call: Callable[[Any], T]) -> T:
        asked: Any = call(self._requests)
        try:
            while (reply := in_turn(self.redis, lambda: run(self.redis, asked))) is UNSETTLED:
                pass
        except RedisError as error:
            raise unreachable(error) from error
        answer: T = reply
        return answer


def follow(path: str | Path | None) -> LiveLimits:
    """The named rates of a configuration, and its Redis. Raises SettingsError where it cannot be used."""
    try:
        from notifier.store.live_limits import LiveLimits  # noqa: PLC0415 - YAML and pydantic are for who has a configuration
    except ModuleNotFoundError:
        raise SettingsError("from_config is in another distribution: pip install push-throttle") from None
    return LiveLimits(path)


def within(timeout: Timeout, retry: type[Any] = Retry) -> dict[str, Any]:
    """Options of a client, by which a call waits no longer than this for a connection, and then for its answer."""
    # Redis may have closed a connection that was idle: that is no reason to refuse.
    told: dict[str, Any] = {"retry": retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))}
    if timeout is not None:
        told |= dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds_of(timeout))
    return told
