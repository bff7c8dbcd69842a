"""Files with secrets that are followed: a new one is taken up once it is whole, without a restart."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from notifier.errors import SettingsError

MAX_BYTES: Final = 1_000_000  # a bundle of all the authorities of a system is a quarter of it
Stat: TypeAlias = tuple[int, int, int] | None


def read_regular(path: Path, key: str) -> bytes:
    """Return what is in the file that `key` names; raise SettingsError if it cannot be read, or is no regular file."""
    try:
        # A FIFO that nobody writes to would be waited for without end.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsError(f"{key}: {path} is no regular file; put the secret into one")
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{key}: cannot read {path}: {os.strerror(error.errno or 0)}") from None
    if len(raw) > MAX_BYTES:
        raise SettingsError(f"{key}: {path} is far too large to be a secret")
    return raw


class LastGood:
    """A secret that is read whenever it is asked for; where that fails, the last one that could be."""

    def __init__(self, whose: str, read: Callable[[], str | None]) -> None:
        """whose: for the log. read: raises SettingsError, here too."""
        self._whose, self._read = whose, read
        self._value = read() or ""
        self._problem = ""

    def __call__(self) -> str:
        """The secret. A new problem is logged, once."""
        try:
            self._value, problem = self._read() or "", ""
        except SettingsError as error:
            problem = str(error)
        if problem and problem != self._problem:
            refuse(self._whose, problem)
        self._problem = problem
        return self._value


def refuse(whose: str, problem: str) -> None:
    """Log that a new secret cannot be used, so that the old one stays in force."""
    import structlog  # noqa: PLC0415 - a producer loads it where it has something to say

    structlog.get_logger(__name__).error("secrets_refused", platform=whose, problems=problem.splitlines())


class SecretFiles:
    """Some files that belong together, such as a certificate and its key. Not for two threads at once.

    As with the configuration, a changed file counts once it is the same at two looks in a row. What counts is its
    content: where Kubernetes changes one secret, it writes the others beside it anew.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = sorted(set(files))
        self._seen = self._before = self._stats()
        self._digest = self._read()

    def changed(self) -> bool:
        """Whether they hold something else than at the start, or than when this was true last."""
        stats = self._stats()
        settled, self._before = stats == self._before, stats
        if stats == self._seen or not settled:
            return False
        self._seen = stats
        before, self._digest = self._digest, self._read()
        return self._digest != before

    def _stats(self) -> list[Stat]:
        return [_stat(file) for file in self._files]

    def _read(self) -> list[str]:
        return [_digest(file) for file in self._files]


def _stat(file: Path) -> Stat:
    try:
        found = file.stat()  # of a link's target, which is what Kubernetes replaces
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(read_regular(file, "")).hexdigest()
    except SettingsError:
        return ""
