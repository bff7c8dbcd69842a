"""The settings in force: those of the file, with the rates applied through Redis, if any, in place of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis import Redis

from notifier.errors import SettingsError
from notifier.rules.policies import Policies
from notifier.settings import Settings, load_settings, read_source
from notifier.settings.loading import Seen
from notifier.settings.provenance import Provenance
from notifier.settings.yaml_source import Source
from notifier.store.connection import ask
from notifier.store.followed import Followed
from notifier.store.partitions import Partitions
from notifier.store.published import Published, published_now, published_rates

NONE: Final = Published()


@dataclass(frozen=True, slots=True)
class Known:
    """The settings in force, and their rules.

    published: the rates that were applied; version '' if the file's own are in force. places: where each rule is
    written.
    """

    settings: Settings
    policies: Policies
    published: Published
    places: Provenance

    @property
    def limits(self) -> set[str]:
        """The names of the limits of all users, tiers and categories, as in `Waits`."""
        known = self.policies
        of_users = [("user", policy) for policy in (known.everyone, *known.tiers.values())]
        of_categories = [(name, category.policy) for name, category in known.categories.items()]
        return {f"{whose} {rule}" for whose, policy in of_users + of_categories for rule in policy.listed}


class InForce:
    """Reads the settings in force, again only if the files or the applied rates have changed. For any thread.

    A file that is being written is left alone, as by `Followed`.
    """

    def __init__(self, path: Path, redis: Any, settings: Settings) -> None:
        """settings: from an earlier reading, with any rates."""
        self._followed = Followed(path, settings=settings)
        self._partitions = Partitions.around(redis)
        self._lock = threading.Lock()
        self._known: Known | None = None

    @property
    def refused(self) -> str:
        """The reason why the newest settings cannot be used, or ''.

        Until they can, the last usable ones stay in force, or at first those of the file, as in workers.
        """
        return self._followed.problem

    def read(self) -> Known:
        """Read the settings. Raises SettingsError if the file cannot be used either, and RedisUnusableError."""
        published = self._partitions.ask_any(published_now)
        with self._lock:
            seen = self._followed.fingerprint()
            is_whole = self._followed.is_settled(seen)
            if self._known is None or seen is None or (is_whole and self._followed.is_changed(seen, published)):
                self._take_up(seen, published)
            assert self._known is not None
            return self._known

    def _take_up(self, seen: Seen, published: Published) -> None:
        try:
            self._known = self._partitions.ask_any(partial(read_known, self._followed.path))
        except SettingsError as error:
            self._known = self._known or read_own(self._followed.path)
            self._followed.note(seen, published)
            self._followed.refuse(error)
        else:
            self._followed.use(self._known.settings)
            self._followed.note(seen, self._known.published)


def read_known(path: Path, redis: Redis, find: Any = published_rates) -> Known:
    """Read the settings with the rates that `find` reads from Redis. Raises as `InForce.read`."""
    published, applied = ask(partial(find, redis))
    if applied is None:
        return read_own(path, published)
    settings = load_settings(path, rates=applied)
    places = Provenance(settings, Source(), f"applied {published.version}")
    return Known(settings, settings.policies(), published, places)


def read_own(path: Path, published: Published = NONE) -> Known:
    settings, source = load_settings(path), read_source(path)
    places = Provenance(settings, source, str(path))
    return Known(settings, settings.policies(), published, places)
