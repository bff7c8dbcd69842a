"""The settings that hold now: the file's, with the rates that were applied through Redis in the place of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from notifier.settings import Settings, load_settings
from notifier.shards.map import connect_all, on_shard
from notifier.store.connection import ask
from notifier.store.published import published_rates


def settings_in_force(path: Path | None) -> Settings:
    """The settings, with the rates that were applied in the place of the file's, where some were."""
    settings = load_settings(path)
    with connect_all(settings) as clients:
        for name, redis in clients.items():
            with on_shard(name):
                rates = ask(partial(published_rates, redis))[1]
            if rates is not None:
                return load_settings(path, rates=rates)
    return settings
