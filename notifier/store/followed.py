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

MISSED: Final = 5  # looks in a row that find no file: one that is only being replaced is there again before
AGAIN_NS: Final = 1_000_000_000  # what has not changed for so long is not being written
# What a file cannot be read for without being changed: no open files or memory left, and disks that fail for a moment.
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})

# Asks Redis a question, whichever Redis is to answer it.
Ask = Callable[[Callable[[Redis], Any]], Any]


class Followed:
    """A configuration that is followed: what is in force, and what was read last. Its owner decides when to read.

    A changed file is read once nobody has written it for a second: half of one may be YAML, and say nothing of
    limits. One that has gone is refused after some looks. What cannot be used is read once, and what is in force holds
    on. Threads take turns by `lock`; in the child of a fork nobody has it.

    settings: in force. published: what was seen in Redis last.
    """

    all: Final = WeakSet["Followed"]()

    def __init__(self, path: Path, environ: Mapping[str, str] = os.environ, settings: Settings | None = None) -> None:
        """settings: as they were read before; None reads them now. Raises SettingsError as `load_settings`."""
        self.path = path
        self._environ = environ
        begun = fingerprint(path, None)
        self.settings = settings or load_settings(path, environ)
        self.published = Published()
        seen = self.fingerprint()
        # Where it may have changed since, or while it was read, it is read once more.
        self._seen: Seen = seen if settings is None and seen and seen[:1] == begun else ()
        self._before: Seen = self._seen
        self._since_ns = time.monotonic_ns()  # each look since then saw what the last one did
        self._has_looked = False
        self._missed = 0
        self.lock = threading.RLock()  # a signal may reload inside a look
        self.all.add(self)

    def fingerprint(self) -> Seen:
        """Of the files as they are now; None where one is missing."""
        return fingerprint(self.path, self.settings.users_from)

    def is_settled(self, seen: Seen) -> bool:
        """Whether these files may be read: they are those in force, or nobody has written them for a second.

        By their own times, and where those lie ahead by what the looks have seen. What differs from the last look may
        be half written, however old its times say it is: the clock of a file server may be behind.
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
        """Whether there is something to read."""
        return published != self.published or (seen != self._seen and (seen is not None or self._missed >= MISSED))

    def note(self, seen: Seen, published: Published) -> None:
        """These have been read, and are not read again. () for `seen` has the files read once more."""
        self._seen, self.published = seen, published

    def refuse(self, error: SettingsError) -> None:
        """Note that what was read last cannot be used, so that it is read once more if it may be read then."""
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING:
            self._seen = ()

    def look(self, ask: Ask) -> Settings | None:
        """Take up what has changed; None where nothing has. Raises as `reload`."""
        seen = self.fingerprint()
        if not self.is_settled(seen) or not self.is_changed(seen, published := self._published(ask)):
            return None
        return self._read(ask, seen, published)

    def reload(self, ask: Ask) -> Settings:
        """Take up what holds now. Raises SettingsError where it cannot be used, and what `ask` raises."""
        return self._read(ask, self.fingerprint(), self._published(ask))

    def _published(self, ask: Ask) -> Published:
        published: Published = ask(lambda redis: read_due(redis, self.published))
        return published

    def _read(self, ask: Ask, seen: Seen, published: Published) -> Settings:
        # Not what is published: that may begin later, or have been replaced meanwhile by what does.
        written = ask(written_in_force)[1] if published.version else None
        self.note(seen, published)
        rates = read_rates(written) if written else None
        try:
            self.settings = load_settings(self.path, self._environ, rates=rates)
        except SettingsError as error:
            self.refuse(error)
            raise
        return self.settings


def _begin_anew() -> None:
    """In the child of a fork: what a thread of the parent was reading is read once more."""
    for each in Followed.all:
        if each.lock.acquire(blocking=False):
            each.lock.release()
        else:
            each.lock = threading.RLock()
            each.note((), Published())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
