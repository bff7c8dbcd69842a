"""The configuration: what may stand in the YAML, how it is read, and what is said of it."""

from notifier.settings.loading import load_settings, parse_settings, read_source, settings_path
from notifier.settings.schema import (
    BackoffSettings,
    CategorySettings,
    LogSettings,
    Settings,
    UserSettings,
    WorkerSettings,
)
from notifier.settings.schema_providers import ApnsSettings, FcmSettings, ProvidersSettings, WebPushSettings
from notifier.settings.schema_redis import RedisSettings, ShardSettings

__all__ = [
    "ApnsSettings",
    "BackoffSettings",
    "CategorySettings",
    "FcmSettings",
    "LogSettings",
    "ProvidersSettings",
    "RedisSettings",
    "Settings",
    "ShardSettings",
    "UserSettings",
    "WebPushSettings",
    "WorkerSettings",
    "load_settings",
    "parse_settings",
    "read_source",
    "settings_path",
]
