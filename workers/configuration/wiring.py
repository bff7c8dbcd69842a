"""Builds a worker's objects from its settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import hiredis
import redis
from rq.connections import get_connection_kwargs

from notifier.errors import needs_extra
from notifier.notification import route
from notifier.notification.notification import at_service, platform_of
from notifier.notification.platforms import find
from notifier.providers.apns.token_store import TokenStore
from notifier.providers.build import Build, Report, keep_silent
from notifier.providers.console import ConsoleProvider
from notifier.providers.contract import Provider
from notifier.queue.retention import Retention
from notifier.settings import Settings
from notifier.settings.schema_providers import PlatformSettings
from notifier.store.aio import async_like
from notifier.store.partitions import Partition
from workers.loop.parts import Tuning
from workers.sending.capacity import Capacity, RouteLimit
from workers.sending.sender import Backoff, Sender

EXTRAS: Final = {"apns": "apns", "expo": "worker", "fcm": "fcm", "hms": "worker", "webpush": "webpush"}  # of ours
LATE_S = 0.1  # how long after its provider's own timeout a send is cancelled; with a sweep, still within its lease

# For this many timeouts of a call to Redis, a producer without an answer may ask again. Redis knows the ids of
# delivered notifications for at least this time, or it would accept one anew.
ASKED_AGAIN: Final = 12


def build_providers(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    tokens: TokenStore | None = None,
    report: Report = keep_silent,
    platform: str | None = None,
) -> dict[str, Provider]:
    """Build the configured providers by route, or those of one platform. tokens, report: see `Build`.

    Raises SettingsError if a key or an account cannot be read.
    """
    build = Build(environ, tokens=tokens, report=report)
    return {by: make() for by, make in _builders(settings, build, platform).items()}


def provider_builders(settings: Settings) -> list[Callable[[], Provider]]:
    """Return the builders that `build_providers` calls, one for each route; each raises SettingsError by itself."""
    return list(_builders(settings, Build(os.environ)).values())


def _builders(settings: Settings, build: Build, platform: str | None = None) -> dict[str, Callable[[], Provider]]:
    return {
        by: partial(_provider, section, app, build)
        for by, section, app in _each_app(settings)
        if platform in {platform_of(by), None}
    }


def _each_app(settings: Settings) -> Iterator[tuple[str, PlatformSettings[Any], str | None]]:
    for platform, section in settings.providers.platforms().items():
        for app in section.app_names:
            yield route(platform, app), section, app


def _provider(section: PlatformSettings[Any], app: str | None, build: Build) -> Provider:
    if section.prints:
        return ConsoleProvider(section.platform, app)
    platform = find(section.platform)
    assert platform is not None, "its section was read by its own schema"
    extra = EXTRAS.get(section.platform)
    with needs_extra(f"providers.{section.platform}", extra) if extra else nullcontext():
        provider: Provider = platform.provider(section, app, build)
    return provider


def circuit_names(settings: Settings, providers: Iterable[str]) -> list[str]:
    """The routes of these providers, and the services behind them that the configuration names in full."""
    services = (at_service(by, host) for by, section, app in _each_app(settings) for host in section.services(app))
    return [*providers, *services]


def key_digests(providers: Mapping[str, Provider]) -> dict[str, str]:
    """Return the digest of the key that each route shows to its services, if they are many."""
    return {by: digest for by, provider in providers.items() if (digest := getattr(provider, "key_digest", ""))}


def dry_runs(settings: Settings) -> list[str]:
    """The routes whose provider only checks messages, so that nothing reaches a device."""
    return [by for by, section, app in _each_app(settings) if section.is_dry_run(app)]


def build_capacity(settings: Settings, routes: Iterable[str]) -> Capacity:
    """A limit for each of these routes, by the timeout of its platform."""
    platforms, most = settings.providers.platforms(), settings.worker.in_flight
    return Capacity(
        {
            by: RouteLimit(max_in_flight=most, timeout_s=of.timeout_us / 1e6)
            for by in routes
            if (of := platforms.get(platform_of(by))) is not None
        }
    )


def build_sender(settings: Settings, providers: Mapping[str, Provider], capacity: Capacity) -> Sender:
    backoff = settings.worker.backoff
    tuning = build_tuning(settings)
    return Sender(
        providers,
        Backoff(backoff.first_us, backoff.max_us),
        answer_s=tuning.timeout_us / 1e6 + LATE_S,
        lease_s=tuning.send_within_s,
        capacity=capacity,
    )


def build_tuning(settings: Settings) -> Tuning:
    """Return the worker's limits, by the settings."""
    worker, providers, keep = settings.worker, settings.providers, Retention.of(settings)
    timeouts = [platform.timeout_us for platform in providers.platforms().values()]
    return Tuning(
        batch=worker.batch,
        in_flight=worker.in_flight,
        lease_us=worker.lease_us,
        timeout_us=max(timeouts, default=0),
        grace_us=worker.grace_us,
        keep=keep._replace(delivered_us=max(keep.delivered_us, ASKED_AGAIN * settings.redis.socket_timeout_us)),
        partitions=settings.redis.partitions,
    )


def asyncio_clients(partitions: Sequence[Partition], *, block_s: float = 0.0) -> list[Any]:
    """An `asyncio_client` for each partition; they share connections."""
    found: list[Any] = []
    for at in partitions:
        found.append(asyncio_client(at.client, block_s=block_s, beside=found[0] if found else None))
    return found


def asyncio_client(client: redis.Redis, *, block_s: float = 0.0, beside: Any = None) -> Any:
    """Make an asyncio client to the server of a synchronous one, which RQ gives us. beside: see `cluster.client_of`.

    block_s: how long a call may block by intent; the socket's timeout is longer. No call is retried: a second *pull*
    would lease a second time. If an answer is lost, the leases in it end by themselves.
    """
    options = {**get_connection_kwargs(client), "decode_responses": False}
    if block_s and options.get("socket_timeout") is not None:
        options["socket_timeout"] += block_s
    made = async_like(client, options, beside)
    its: Any = made.connection_pool
    its.connection_class = type(f"Packing{its.connection_class.__name__}", (_Packing, its.connection_class), {})
    return made


class _Packing:
    """An asyncio connection that packs its commands in C, as redis-py's others do: a settlement has 400 arguments."""

    def pack_command(self, *args: Any) -> list[bytes]:
        first = args[0].encode() if isinstance(args[0], str) else args[0]
        return [hiredis.pack_command((*first.split(), *args[1:]))]  # such as SCRIPT LOAD
