"""The configuration: the schema of the YAML, its reading, its checks, and advice on it."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.settings.loading import (
        load_settings as load_settings,
        parse_settings as parse_settings,
        read_source as read_source,
        settings_path as settings_path,
    )
    from notifier.settings.schema import Settings as Settings
    from notifier.settings.schema_redis import RedisSettings as RedisSettings

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.settings.loading": "load_settings parse_settings read_source settings_path",
        "notifier.settings.schema": "Settings",
        "notifier.settings.schema_redis": "RedisSettings",
    },
)
