"""The configuration: what may stand in the YAML, how it is read, and what is said of it."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.settings.loading import load_settings, parse_settings, read_source, settings_path
    from notifier.settings.schema import CategorySettings, Settings
    from notifier.settings.schema_processes import BackoffSettings, LogSettings, WorkerSettings
    from notifier.settings.schema_providers import PlatformSettings, ProvidersSettings
    from notifier.settings.schema_redis import RedisSettings
    from notifier.settings.schema_rules import UserSettings

__all__ = [
    "BackoffSettings",
    "CategorySettings",
    "LogSettings",
    "PlatformSettings",
    "ProvidersSettings",
    "RedisSettings",
    "Settings",
    "UserSettings",
    "WorkerSettings",
    "load_settings",
    "parse_settings",
    "read_source",
    "settings_path",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.settings.loading": "load_settings parse_settings read_source settings_path",
        "notifier.settings.schema": "CategorySettings Settings",
        "notifier.settings.schema_rules": "UserSettings",
        "notifier.settings.schema_processes": "BackoffSettings LogSettings WorkerSettings",
        "notifier.settings.schema_providers": "PlatformSettings ProvidersSettings",
        "notifier.settings.schema_redis": "RedisSettings",
    },
)
