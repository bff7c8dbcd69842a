"""The providers: a folder each, the one importer of its driver; and what who writes another one needs.

The names in `__all__` are the public protocol, of the version `PROTOCOL`; docs/how-to/platforms.md shows their use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.notification.platforms import PROTOCOL, Kind, Platform, check_payload, installed
    from notifier.providers.answers import Table
    from notifier.providers.build import Build, Late
    from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
    from notifier.providers.transport.backoff import Backoff, Turns
    from notifier.providers.transport.http1 import Pool, Response, tls_context
    from notifier.providers.transport.probes import http1_lives
    from notifier.rules.category import PlatformLimits
    from notifier.settings.checks import Duration, File, HttpsEndpoint, Rate, Rates
    from notifier.settings.schema_providers import PlatformSettings
    from notifier.settings.schema_types import Section

__all__ = [
    "PROTOCOL",
    "Answer",
    "Backoff",
    "Build",
    "Dispatch",
    "Duration",
    "File",
    "HttpsEndpoint",
    "Kind",
    "Late",
    "Outcome",
    "Platform",
    "PlatformLimits",
    "PlatformSettings",
    "Pool",
    "Provider",
    "Rate",
    "Rates",
    "Response",
    "Section",
    "Table",
    "Turns",
    "check_payload",
    "http1_lives",
    "installed",
    "tls_context",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.notification.platforms": "PROTOCOL Kind Platform check_payload installed",
        "notifier.providers.answers": "Table",
        "notifier.providers.build": "Build Late",
        "notifier.providers.contract": "Answer Dispatch Outcome Provider",
        "notifier.providers.transport.backoff": "Backoff Turns",
        "notifier.providers.transport.http1": "Pool Response tls_context",
        "notifier.providers.transport.probes": "http1_lives",
        "notifier.rules.category": "PlatformLimits",
        "notifier.settings.schema_providers": "PlatformSettings",
        "notifier.settings.checks": "Duration File HttpsEndpoint Rate Rates",
        "notifier.settings.schema_types": "Section",
    },
)
