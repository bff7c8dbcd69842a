"""The named rates of a configuration, as of now: those of its file, or those that were published through Redis."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import structlog

from notifier.errors import RedisUnusableError, SettingsError
from notifier.rules.policy import Policy
from notifier.scripts.keys import RQ, Prefixes, under
from notifier.settings import Settings, redis_url, settings_path
from notifier.store.connection import connection_options
from notifier.store.followed import Followed
from notifier.store.partitions import connect_all
from notifier.store.sign_in import by_file

LOOK_S: Final = 1.0


class LiveLimits:
    """Follows `limits` of a configuration; whoever asks looks, once a second at most.

    What cannot be used is logged, and the rates in force hold on. So does a name that is no longer there: a program
    that asks for it is not to fail, nor to go without a limit, because of a change elsewhere.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """path: as of `load_settings`. Raises SettingsError where it cannot be used."""
        self._followed = Followed(settings_path(path))
        self.settings = self._followed.settings
        self._partitions = connect_all(self.settings.redis)
        self._known: dict[str, Policy] = dict(self.settings.limits)
        self._next_look = 0.0
        self._log = structlog.get_logger("notifier.limiter")

    def of_connections(self, of_url: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a cluster's connections: those of its URL, and what else the configuration says."""
        config = self.settings.redis
        return by_file({**connection_options(config), **of_url}, config.read_password)

    def keys_named(self) -> AbstractContextManager[None]:
        """Name keys under `redis.prefix`: in a cluster one by one, whatever slots a fleet has for its own."""
        config = self.settings.redis
        return under(Prefixes(config.prefix, RQ) if redis_url.is_cluster(config.url) else None)

    @property
    def is_due(self) -> bool:
        """Whether somebody should look again."""
        return time.monotonic() >= self._next_look

    def known(self) -> Mapping[str, Policy]:
        """The rates as of the last look."""
        return self._known

    def now(self) -> Mapping[str, Policy]:
        """The rates, after a look if one is due."""
        if self.is_due:
            self.look()
        return self._known

    def close(self) -> None:
        """Close the connections to Redis. A look afterwards opens them again."""
        self._partitions.close()

    def look(self) -> None:
        """Take up what has changed. One looks; others go on with what is known."""
        lock = self._followed.lock
        if not lock.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + LOOK_S
            if (settings := self._followed.look(self._partitions.ask_any)) is not None:
                self._take_up(settings)
        except SettingsError as error:
            self._log.error("limits_refused", problems=str(error).splitlines())
        except RedisUnusableError:
            return  # nobody is admitted without Redis either
        finally:
            lock.release()

    def _take_up(self, settings: Settings) -> None:
        if lost := sorted(self._known.keys() - settings.limits.keys()):
            self._log.warning("limits_lost", names=lost, hold_on=True)
        changed = self._known | settings.limits
        if changed != self._known:
            self._known = changed
            self._log.info("limits_taken_up", version=settings.rates_version)
