"""A configuration that is followed: its file, and the rates that are published through Redis."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from redis import Redis

from notifier.errors import SettingsError
from notifier.settings import Settings, load_settings
from notifier.settings.loading import Seen, fingerprint
from notifier.store.published import Published, read_due, read_rates, written_in_force

MISSED: Final = 5  # looks in a row without the file: a file that is only being replaced is back sooner
AGAIN_NS: Final = 1_000_000_000  # a file that has not changed for this long is not being written
# Errors of reading that pass without a change of the file: no open files or memory left, a disk that fails briefly.
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})

# Asks Redis a question; the owner decides which Redis answers.
Ask = Callable[[Callable[[Redis], Any]], Any]


class Followed:
    """A configuration that is followed: the settings in force, and what was read last. Its owner decides when to look.

    A changed file is read once nobody has written it for a second: half a file may be valid YAML, without its limits.
    If the file has gone, it is refused after some looks. A configuration that cannot be used is read once, and the
    settings in force stay. Threads take turns by `lock`; in the child of a fork it is free.

    published: the rates that Redis had at the last reading. problem: why what was read last cannot be used, or ''.
    is_news: whether that differs from what was read before; it is read at each look if it may pass.
    """

    all: Final = WeakSet["Followed"]()

    def __init__(self, path: Path, environ: Mapping[str, str] = os.environ, settings: Settings | None = None) -> None:
        """settings: if the caller has read them; None reads them now. Raises SettingsError as `load_settings`."""
        self.path = path
        self._environ = environ
        begun = fingerprint(path, None)
        self.settings = settings or load_settings(path, environ)
        self.published = Published()
        self.problem, self.is_news = "", False
        seen = self.fingerprint()
        # If the file may have changed while it was read, or since, the next look reads it again.
        self._seen: Seen = seen if settings is None and seen and seen[:1] == begun else ()
        self._before: Seen = self._seen
        self._since_ns = time.monotonic_ns()  # since then, all looks saw the same
        self._has_looked = False
        self._missed = 0
        self.lock = threading.RLock()  # a signal may reload inside a look
        self.all.add(self)

    def fingerprint(self) -> Seen:
        """The fingerprint of the present files; None if one is missing."""
        return fingerprint(self.path, self.settings.users_from)

    def is_settled(self, seen: Seen) -> bool:
        """Whether these files may be read: they are those in force, or nobody has written them for a second.

        The files' own times tell that, or, if those lie in the future, the looks so far. A file that differs from the
        last look may be half written, however old its times are: the clock of a file server may be behind.
        """
        now_ns, is_new = time.monotonic_ns(), seen not in {self._before, None} and self._has_looked
        if seen != self._before:
            self._before, self._since_ns = seen, now_ns
        self._has_looked = True
        self._missed = 0 if seen else self._missed + 1
        stood = now_ns - self._since_ns > AGAIN_NS
        is_old = not is_new and all(time.time_ns() - file[0] > AGAIN_NS for file in seen or ())
        return stood or seen == self._seen or is_old

    def is_changed(self, seen: Seen, published: Published) -> bool:
        return published != self.published or (seen != self._seen and (seen is not None or self._missed >= MISSED))

    def note(self, seen: Seen, published: Published) -> None:
        """Note that these have been read, so that no look reads them again. seen: () has the files read again."""
        self._seen, self.published = seen, published

    def use(self, settings: Settings) -> None:
        """Take up what was read last."""
        self.settings, self.problem = settings, ""

    def refuse(self, error: SettingsError) -> None:
        """Note that what was read last cannot be used, so that the next look reads it again if that may pass."""
        may_pass = isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING
        self.is_news = not may_pass or str(error) != self.problem
        self.problem = str(error)
        if may_pass:
            self._seen = ()

    def look(self, ask: Ask) -> Settings | None:
        """Read the configuration if it has changed; None if it has not. Raises as `reload`."""
        seen = self.fingerprint()
        if not self.is_settled(seen) or not self.is_changed(seen, published := self._published(ask)):
            return None
        return self._read(ask, seen, published)

    def reload(self, ask: Ask) -> Settings:
        """Read the configuration as it is now. Raises SettingsError if it cannot be used, and what `ask` raises."""
        return self._read(ask, self.fingerprint(), self._published(ask))

    def _published(self, ask: Ask) -> Published:
        published: Published = ask(lambda redis: read_due(redis, self.published))
        return published

    def _read(self, ask: Ask, seen: Seen, published: Published) -> Settings:
        # Not the rates that `published` names: they may begin later, or rates that do may have replaced them.
        written = ask(written_in_force)[1] if published.version else None
        self.note(seen, published)
        try:
            rates = read_rates(written) if written else None
            self.use(load_settings(self.path, self._environ, rates=rates))
        except SettingsError as error:
            self.refuse(error)
            raise
        return self.settings


def _begin_anew() -> None:
    """In the child of a fork: have the next look read again what a thread of the parent was reading."""
    for each in Followed.all:
        if each.lock.acquire(blocking=False):
            each.lock.release()
        else:
            each.lock = threading.RLock()
            each.note((), Published())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
