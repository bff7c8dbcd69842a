"""The named limits in force: those of a configuration's file, or those published through Redis."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from notifier.rules.policy import Policy
from notifier.settings import Settings
from notifier.store.aio import connect_async
from notifier.store.connection import connect, connection_options
from notifier.store.live import LOG, LiveSettings
from notifier.store.sign_in import by_file


class LiveLimits:
    """The section `limits` of a configuration that is followed, and its Redis.

    If a name leaves the section, its last rates stay in force: a program that asks for it must not fail, nor go without
    a limit, because of a change elsewhere.

    live: follows the configuration. known: the rates at its last look.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """path: see `load_settings`. Raises SettingsError if the configuration cannot be used."""
        self.live = LiveSettings(path, os.environ)
        self.live.follow(self._take_up)
        self.redis = self.live.settings.redis
        self.known: Mapping[str, Policy] = self.live.settings.limits

    def of_connections(self, of_url: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a cluster's connections: those of its URL, and the others of the configuration."""
        return by_file({**connection_options(self.redis), **of_url}, self.redis.read_password)

    def now(self) -> Mapping[str, Policy]:
        """The rates in force. The first call begins to follow the configuration."""
        self.live.begin()
        return self.known

    def client(self, *, awaited: bool) -> Any:
        """A client, not yet connected. awaited: of asyncio; otherwise it blocks."""
        return connect_async(self.redis) if awaited else connect(self.redis)

    def _take_up(self, settings: Settings) -> None:
        if lost := sorted(self.known.keys() - settings.limits.keys()):
            LOG.warning("the configuration has no limit %s any more: its last rates hold on", ", ".join(lost))
        self.known = {**self.known, **settings.limits}
