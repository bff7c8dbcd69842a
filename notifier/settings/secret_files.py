"""Follow files with secrets: a process uses a new secret once its file is whole, without a restart."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from notifier.errors import SettingsError

SECRETS: Final = ("key_file", "password_file", "secret_file", "service_account")
MAX_BYTES: Final = 1_000_000  # four times the size of a system's bundle of authorities
NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)  # a FIFO without a writer must not block; Windows has no such flag
Stat: TypeAlias = tuple[int, int, int, int] | None


def read_regular(path: Path, key: str) -> bytes:
    """Return the content of the file that `key` names; raise SettingsError if it cannot be read or is not regular."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NO_WAIT)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsError(f"{key}: {path} is no regular file; put the secret into one")
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{key}: cannot read {path}: {os.strerror(error.errno or 0)}") from None
    if len(raw) > MAX_BYTES:
        raise SettingsError(f"{key}: {path} is far too large to be a secret")
    return raw


class LastGood:
    """A secret that is read at each call. If a read fails, the last good one stays in force."""

    def __init__(self, whose: str, read: Callable[[], str | None]) -> None:
        """whose: for the log. Raise SettingsError if the first `read` does."""
        self._whose, self._read = whose, read
        self._value = read() or ""
        self._problem = ""

    def __call__(self) -> str:
        """Return the secret. A new problem is logged once."""
        try:
            self._value, problem = self._read() or "", ""
        except SettingsError as error:
            problem = str(error)
        if problem and problem != self._problem:
            refuse(self._whose, problem)
        self._problem = problem
        return self._value


def refuse(whose: str, problem: str) -> None:
    """Log that a new secret cannot be used, and that the old one stays in force."""
    import structlog  # noqa: PLC0415 - a producer imports it only if it has to log

    if structlog.is_configured():
        structlog.get_logger(__name__).error("secrets_refused", platform=whose, problems=problem.splitlines())
    else:  # another program, whose output structlog would write to
        logging.getLogger("notifier").error("new secrets of %s refused, the old ones stay: %s", whose, problem)


class SecretFiles:
    """Some files that belong together, such as a certificate and its key. Not for two threads at once.

    A change counts once two checks in a row see the same files. Only the content counts: if one secret changes,
    Kubernetes also writes the others beside it again.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = sorted(set(files))
        self._seen = self._before = self._stats()
        self._digest = self._read()

    def changed(self) -> bool:
        """Whether their content changed since the start, or since this last returned True."""
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
        found = file.stat()  # follows a link, whose target Kubernetes replaces
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # a chmod changes ctime


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(read_regular(file, "")).hexdigest()
    except SettingsError:
        return ""


def read_by_others(settings: object, at: str = "") -> Iterator[str]:
    """Yield a warning for each file with a secret, anywhere in the settings, that every user of this host may read."""
    fields = getattr(settings, "__dict__", None) if not isinstance(settings, dict) else settings
    for name, value in (fields or {}).items():
        where = f"{at}.{name}" if at else str(name)
        if isinstance(value, Path) and str(name).endswith(SECRETS):
            with suppress(OSError):  # another check reports a missing file
                if value.stat().st_mode & stat.S_IROTH:
                    yield f"{where}: every user of this host may read {value}; chmod 600 it"
        elif isinstance(value, dict) or hasattr(value, "model_fields_set"):
            yield from read_by_others(value, where)
