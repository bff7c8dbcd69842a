"""From settings to objects, once, in one place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.sentinel import SentinelConnectionPool
from rq.connections import get_connection_kwargs

from notifier.errors import SettingsError
from notifier.notification import route
from notifier.notification.notification import at_service
from notifier.providers.apns.token_store import TokenStore
from notifier.providers.console import ConsoleProvider
from notifier.providers.contract import Provider
from notifier.settings import ApnsSettings, FcmSettings, Settings, WebPushSettings
from notifier.store.sentinel import AsyncPrimary
from workers.capacity import Capacity, RouteLimit
from workers.in_flight import Tuning
from workers.sender import Backoff, Observer, Sender

LATE_S = 0.1  # beyond a provider's own timeout; with this and a sweep it still ends before its lease

# So many times as long as a call to Redis may take, a producer that got no answer may still ask again. Until then what
# was delivered is known by its id, or it would be accepted anew.
ASKED_AGAIN: Final = 12
Shared = dict[tuple[Any, ...], Any]  # what serves several apps, by all that these have in common


def build_providers(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, tokens: TokenStore | None = None
) -> dict[str, Provider]:
    """The configured providers by route. tokens: where all workers share what they send with.

    Raises SettingsError where a key or an account cannot be read.
    """
    return {by: build() for by, build in _builders(settings, environ, tokens).items()}


def provider_builders(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Callable[[], Provider]]:
    """What `build_providers` calls, one for each route; each raises SettingsError by itself."""
    return list(_builders(settings, environ, None).values())


def _builders(
    settings: Settings, environ: Mapping[str, str], tokens: TokenStore | None
) -> dict[str, Callable[[], Provider]]:
    found: dict[str, Callable[[], Provider]] = {}
    shared: Shared = {}
    if (apns := settings.providers.apns) is not None:
        found |= {route("apns", app): partial(_apns, apns, app, environ, tokens, shared) for app in apns.app_names}
    if (fcm := settings.providers.fcm) is not None:
        found |= {route("fcm", app): partial(_fcm, fcm, app, environ, shared) for app in fcm.app_names}
    if (webpush := settings.providers.webpush) is not None:
        found |= {route("webpush", app): partial(_webpush, webpush, app, environ) for app in webpush.app_names}
    return found


def _apns(
    settings: ApnsSettings, app: str | None, environ: Mapping[str, str], tokens: TokenStore | None, shared: Shared
) -> Provider:
    if settings.client == "console":
        return ConsoleProvider("apns", app)
    mine = settings.app(app)
    sign_in: dict[str, Any] = {
        "team_id": mine.team_id,
        "key_id": mine.key_id,
        "key": "" if mine.cert_file else settings.read_key(environ, app),
        "cert_file": mine.cert_file,
        "cert_key_file": mine.cert_key_file,
        "endpoint": mine.endpoint,
        "ca_file": mine.ca_file,
    }
    # Apple dislikes many connections, and one serves every topic of the team.
    same = ("apns", *sign_in.values())
    if same not in shared:
        client = _apns_client(settings.client)
        shared[same] = client(topic=mine.topic, timeout_us=mine.timeout_us, tokens=tokens, **sign_in)
    provider: Provider = shared[same].for_topic(mine.topic)
    return provider


def _apns_client(name: str) -> Callable[..., Provider]:
    if name == "apns2":
        from notifier.providers.apns.pyapns2.provider import Apns2Provider  # noqa: PLC0415 - a driver is loaded where it is used

        return Apns2Provider
    from notifier.providers.apns.provider import ApnsProvider  # noqa: PLC0415 - as above

    return ApnsProvider


def _fcm(settings: FcmSettings, app: str | None, environ: Mapping[str, str], shared: Shared) -> Provider:
    if settings.client == "console":
        return ConsoleProvider("fcm", app)
    from notifier.providers.fcm.provider import FcmProvider  # noqa: PLC0415 - as above

    mine = settings.app(app)
    account = settings.read_service_account(environ, app)
    # Two apps of one project are one to FCM: the device's token tells them apart.
    same = ("fcm", json.dumps(account, sort_keys=True), mine.endpoint, mine.ca_file, mine.dry_run)
    if same not in shared:
        shared[same] = FcmProvider(
            service_account=account,
            endpoint=mine.endpoint,
            ca_file=mine.ca_file,
            timeout_us=mine.timeout_us,
            dry_run=mine.dry_run,
        )
    provider: Provider = shared[same]
    return provider


def _webpush(settings: WebPushSettings, app: str | None, environ: Mapping[str, str]) -> Provider:
    if settings.client == "console":
        return ConsoleProvider("webpush", app)
    try:
        from notifier.providers.webpush.provider import WebPushProvider  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"providers.webpush: client pywebpush needs the package {error.name}, which is not installed:"
            " pip install 'push-throttle[webpush]'"
        ) from None

    mine = settings.app(app)
    return WebPushProvider(
        key=settings.read_key(environ, app),
        subject=mine.subject,
        hosts=mine.hosts,
        ca_file=mine.ca_file,
        timeout_us=mine.timeout_us,
    )


def circuit_names(settings: Settings, providers: Iterable[str]) -> list[str]:
    """The routes of these providers, and the push services that the configuration names in full."""
    webpush = settings.providers.webpush
    apps = [] if webpush is None else webpush.app_names
    hosts = [(app, host) for app in apps if webpush for host in webpush.app(app).hosts if not host.startswith("*.")]
    return [*providers, *(at_service(route("webpush", app), host) for app, host in hosts)]


def dry_runs(settings: Settings) -> list[str]:
    """The routes by which nothing reaches a device, because their provider is only asked to check it."""
    fcm = settings.providers.fcm
    if fcm is None or fcm.client == "console":
        return []
    return [route("fcm", app) for app in fcm.app_names if fcm.app(app).dry_run]


def build_capacity(settings: Settings, routes: Iterable[str]) -> Capacity:
    """A limit for each of these routes, by the timeout of its platform."""
    platforms, most = settings.providers.platforms(), settings.worker.in_flight
    found = {by: platforms.get(by.partition("/")[0]) for by in routes}
    return Capacity(
        {by: RouteLimit(most=most, timeout_s=of.timeout_us / 1e6) for by, of in found.items() if of is not None}
    )


def build_sender(
    settings: Settings, providers: Mapping[str, Provider], observer: Observer, capacity: Capacity
) -> Sender:
    """The sender with these providers; see `Sender` for `observer` and `capacity`."""
    backoff = settings.worker.backoff
    answer_s = build_tuning(settings).timeout_us / 1e6 + LATE_S
    return Sender(providers, Backoff(backoff.first_us, backoff.most_us), observer, answer_s=answer_s, capacity=capacity)


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
        keep_events_us=settings.events.keep_us,
    )


def asyncio_client(client: redis.Redis, *, block_s: float = 0.0) -> Any:
    """An asyncio client to the same server as a synchronous one, which RQ gives us.

    block_s: how long a call on it may block by intent; its socket's patience is longer. The client never repeats a
    call by itself: *admit* run twice would lease twice. What is lost, a lease gives back.
    """
    pool = client.connection_pool
    classes = {
        redis.SSLConnection: redis.asyncio.SSLConnection,
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
