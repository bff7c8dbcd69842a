"""Start a worker with settings of a file that nobody is writing, and a Redis that is there."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from redis.exceptions import RedisError

from notifier.errors import RedisAwayError
from notifier.settings import Settings, load_settings
from notifier.store.connection import ask, check, comes_back, eviction_warning, unusable
from notifier.store.followed import AGAIN_NS
from notifier.store.partitions import Partition
from workers.loop.watchdog import Signs

T = TypeVar("T")

AGAIN_S: Final = AGAIN_NS / 1e9
MAX_LOOKS: Final = 10
GARBAGE: Final = (10_000, 20, 20)  # new objects, and collections of the younger, until the next collection


def load_at_start(path: Path | None) -> Settings:
    """The settings that a worker starts with, of a file that nobody writes: it has been the same for a second.

    Raise SettingsError where it cannot be used.
    """
    for _ in range(MAX_LOOKS):
        try:
            age_s = 0.0 if path is None else time.time() - path.stat().st_mtime
        except OSError:  # to load it says so
            break
        if path is None or not 0 <= age_s < AGAIN_S:
            break
        time.sleep(AGAIN_S - age_s)
    return load_settings(path)


def collect_garbage_seldom() -> None:
    """Let the collector look for cycles seldom, and never at what is there now.

    A send makes dozens of objects and no cycle. By Python's own thresholds the collector takes a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)


class Wait:
    """A wait for a Redis that has gone: the log says once that it has begun, and when it is over.

    again_s: between two looks for it.
    """

    again_s = 0.5

    def __init__(self, log: Any) -> None:
        self._log = log
        self.begun = False

    def goes_on(self, reason: object) -> None:
        """It has not come back. reason: the error, or what it says."""
        if not self.begun:
            self._log.warning("limiter_unreachable", reason=str(reason), waits="until it is there")
        self.begun = True

    def sleep(self) -> None:
        """Until the next look; where no event loop runs yet, which would tell that the worker lives."""
        Signs(os.environ).give("READY=1", "WATCHDOG=1")
        time.sleep(self.again_s)

    def is_over(self) -> None:
        """It is there, if it ever was away."""
        if self.begun:
            self._log.info("limiter_reachable")


def wait_for_redis(connection: Any) -> None:
    """Wait until Redis is there, and say for what; raise RedisUnusableError where it is, and cannot be used."""
    log = structlog.get_logger("notifier.worker")
    wait = Wait(log)
    while True:
        try:
            check(connection)
            warning = eviction_warning(ask(partial(connection.info, "memory")))
        except RedisAwayError as error:
            wait.goes_on(error)
            wait.sleep()
        else:
            break
    wait.is_over()
    if warning:
        log.warning("eviction_unknown", reason=warning)


def made_when_there(connection: Any, make: Callable[[], T]) -> T:
    """Return what is made with a Redis that is there; one that goes meanwhile is waited for.

    Raises RedisUnusableError where it is there, and cannot be used.
    """
    while True:
        wait_for_redis(connection)
        try:
            return make()
        except RedisError as error:
            if not comes_back(error):
                raise unusable(error) from error


def those_there_first(served: Sequence[Partition]) -> Sequence[Partition]:
    """Return these, where there are several with one first that answers, and wait for it: there RQ knows the worker.

    Raise RedisUnusableError where one is there, and cannot be used.
    """
    wait = Wait(structlog.get_logger("notifier.worker"))
    while len(served) > 1:
        for at in served:
            try:
                check(at.client)
            except RedisAwayError as error:
                away = error
            else:
                wait.is_over()
                return sorted(served, key=lambda each: each is not at)
        wait.goes_on(away)
        wait.sleep()
    return served
