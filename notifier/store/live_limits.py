"""The named rates of a configuration, as of now: those of its file, or those that were published through Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from redis.exceptions import RedisError

from notifier.errors import SettingsError
from notifier.rules.policy import Policy
from notifier.settings import Settings, settings_path
from notifier.store.connection import connect
from notifier.store.followed import Followed

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
        self._redis = connect(self.settings)
        self._lock = threading.Lock()
        self._known: dict[str, Policy] = dict(self.settings.limits)
        self._next_look = 0.0
        self._log = structlog.get_logger("notifier.limiter")

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

    def look(self) -> None:
        """Take up what has changed. One looks; others go on with what is known."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + LOOK_S
            if (settings := self._followed.look(lambda question: question(self._redis))) is not None:
                self._take_up(settings)
        except SettingsError as error:
            self._log.error("limits_refused", problems=str(error).splitlines())
        except RedisError:
            return  # nobody is admitted without Redis either
        finally:
            self._lock.release()

    def _take_up(self, settings: Settings) -> None:
        if lost := sorted(self._known.keys() - settings.limits.keys()):
            self._log.warning("limits_lost", names=lost, hold_on=True)
        changed = self._known | settings.limits
        if changed != self._known:
            self._known = changed
            self._log.info("limits_taken_up", version=settings.rates_version)
