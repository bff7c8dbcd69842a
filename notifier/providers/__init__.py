"""The providers, each in a folder that alone imports its driver; and the names for writing another one.

These names are the public protocol, in the version `PROTOCOL`; docs/how-to/platforms.md shows their use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.notification.platforms import (
        PROTOCOL as PROTOCOL,
        Kind as Kind,
        Platform as Platform,
        check_payload as check_payload,
        installed as installed,
    )
    from notifier.providers.answers import Table as Table
    from notifier.providers.build import Build as Build, Late as Late
    from notifier.providers.contract import (
        Answer as Answer,
        Dispatch as Dispatch,
        Outcome as Outcome,
        Provider as Provider,
    )
    from notifier.providers.transport.backoff import Backoff as Backoff, Turns as Turns
    from notifier.providers.transport.http1 import (
        Pool as Pool,
        Response as Response,
        http1_lives as http1_lives,
        tls_context as tls_context,
    )
    from notifier.rules.category import PlatformLimits as PlatformLimits
    from notifier.settings.checks import (
        Duration as Duration,
        File as File,
        HttpsEndpoint as HttpsEndpoint,
        Rate as Rate,
        Rates as Rates,
    )
    from notifier.settings.schema_providers import PlatformSettings as PlatformSettings, Secret as Secret
    from notifier.settings.schema_types import Section as Section

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.notification.platforms": "PROTOCOL Kind Platform check_payload installed",
        "notifier.providers.answers": "Table",
        "notifier.providers.build": "Build Late",
        "notifier.providers.contract": "Answer Dispatch Outcome Provider",
        "notifier.providers.transport.backoff": "Backoff Turns",
        "notifier.providers.transport.http1": "Pool Response http1_lives tls_context",
        "notifier.rules.category": "PlatformLimits",
        "notifier.settings.schema_providers": "PlatformSettings Secret",
        "notifier.settings.checks": "Duration File HttpsEndpoint Rate Rates",
        "notifier.settings.schema_types": "Section",
    },
)
