"""From settings to objects, once, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.sentinel import SentinelConnectionPool
from rq.connections import get_connection_kwargs

from notifier.dispatch.ends import Ends
from notifier.notification import route
from notifier.notification.notification import at_service
from notifier.notification.platforms import find
from notifier.providers.apns.token_store import TokenStore
from notifier.providers.build import Build, Report, keep_silent
from notifier.providers.console import ConsoleProvider
from notifier.providers.contract import Provider
from notifier.settings import Settings
from notifier.settings.schema_providers import PlatformSettings
from notifier.store.sentinel import AsyncPrimary
from notifier.store.sign_in import renewing
from workers.capacity import Capacity, RouteLimit
from workers.in_flight import Tuning
from workers.sender import Backoff, Observer, Sender

LATE_S = 0.1  # beyond a provider's own timeout; with this and a sweep it still ends before its lease

# So many times as long as a call to Redis may take, a producer that got no answer may still ask again. Until then what
# was delivered is known by its id, or it would be accepted anew.
ASKED_AGAIN: Final = 12


def build_providers(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    tokens: TokenStore | None = None,
    report: Report = keep_silent,
    platform: str | None = None,
) -> dict[str, Provider]:
    """The configured providers by route, or those of one platform. tokens, report: see `Build`.

    Raises SettingsError where a key or an account cannot be read.
    """
    build = Build(environ, tokens=tokens, report=report)
    return {by: make() for by, make in _builders(settings, build, platform).items()}


def provider_builders(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Callable[[], Provider]]:
    """What `build_providers` calls, one for each route; each raises SettingsError by itself."""
    return list(_builders(settings, Build(environ)).values())


def _builders(settings: Settings, build: Build, platform: str | None = None) -> dict[str, Callable[[], Provider]]:
    return {
        route(name, app): partial(_provider, section, app, build)
        for name, section in settings.providers.platforms().items()
        if platform in {name, None}
        for app in section.app_names
    }


def _provider(section: PlatformSettings[Any], app: str | None, build: Build) -> Provider:
    if section.prints:
        return ConsoleProvider(section.platform, app)
    platform = find(section.platform)
    assert platform is not None, "its section was read by its own schema"
    provider: Provider = platform.provider(section, app, build)
    return provider


def circuit_names(settings: Settings, providers: Iterable[str]) -> list[str]:
    """The routes of these providers, and the services behind them that the configuration names in full."""
    services = (
        at_service(route(name, app), host)
        for name, section in settings.providers.platforms().items()
        for app in section.app_names
        for host in section.services(app)
    )
    return [*providers, *services]


def dry_runs(settings: Settings) -> list[str]:
    """The routes by which nothing reaches a device, because their provider is only asked to check it."""
    return [
        route(name, app)
        for name, section in settings.providers.platforms().items()
        for app in section.app_names
        if section.is_dry_run(app)
    ]


def build_capacity(settings: Settings, routes: Iterable[str]) -> Capacity:
    """A limit for each of these routes, by the timeout of its platform."""
    platforms, most = settings.providers.platforms(), settings.worker.in_flight
    found = {by: platforms.get(by.partition("/")[0]) for by in routes}
    return Capacity(
        {
            by: RouteLimit(max_in_flight=most, timeout_s=of.timeout_us / 1e6)
            for by, of in found.items()
            if of is not None
        }
    )


def build_sender(
    settings: Settings, providers: Mapping[str, Provider], observer: Observer, capacity: Capacity
) -> Sender:
    """The sender with these providers; see `Sender` for `observer` and `capacity`."""
    backoff = settings.worker.backoff
    answer_s = build_tuning(settings).timeout_us / 1e6 + LATE_S
    return Sender(
        providers,
        Backoff(backoff.first_us, backoff.max_us),
        observer,
        answer_s=answer_s,
        lease_s=settings.worker.lease_us / 1e6,
        capacity=capacity,
    )


def build_tuning(settings: Settings) -> Tuning:
    """How much at once and how long, by the settings."""
    worker, providers = settings.worker, settings.providers
    timeouts = [platform.timeout_us for platform in providers.platforms().values()]
    return Tuning(
        batch=worker.batch,
        in_flight=worker.in_flight,
        lease_us=worker.lease_us,
        timeout_us=max(timeouts, default=0),
        grace_us=worker.grace_us,
        keep_failed_us=settings.keep_failed_us,
        keep_delivered_us=max(settings.keep_delivered_us, ASKED_AGAIN * settings.redis.socket_timeout_us),
        keep_feedback_us=settings.keep_feedback_us,
        ends=Ends.of(settings),
    )


def asyncio_client(client: redis.Redis, *, block_s: float = 0.0) -> Any:
    """An asyncio client to the same server as a synchronous one, which RQ gives us.

    block_s: how long a call on it may block by intent; its socket's timeout is longer. The client never repeats a
    call by itself: *admit* run twice would lease twice. What is lost, a lease gives back.
    """
    pool = client.connection_pool
    classes = {
        redis.SSLConnection: renewing(redis.asyncio.SSLConnection),
        redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
    }
    connection_class = classes.get(pool.connection_class, redis.asyncio.Connection)
    kwargs = {k: v for k, v in get_connection_kwargs(client).items() if k not in ("retry", "retry_on_error")}
    kwargs["retry"] = redis.asyncio.retry.Retry(NoBackoff(), 0)
    kwargs["decode_responses"] = False
    if block_s and kwargs.get("socket_timeout") is not None:
        kwargs["socket_timeout"] += block_s
    if isinstance(pool, SentinelConnectionPool):
        return AsyncPrimary(pool, kwargs)
    # Unlike one that is given a pool, this client closes it, and its connections, when it is closed.
    return redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(connection_class=connection_class, **kwargs))
