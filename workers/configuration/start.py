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
PAUSE_S: Final = 0.5  # between two looks for a Redis that has gone
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


def pause() -> None:
    """Let some time pass before the next look; where no event loop runs yet, which would tell that the worker lives."""
    Signs(os.environ).give("READY=1", "WATCHDOG=1")
    time.sleep(PAUSE_S)


def when_there(do: Callable[[], T], stops: Callable[[], bool] = lambda: False, log: Any = None) -> T | None:
    """Return what is done with a Redis that is there: one that has gone is waited for, and the log says so once.

    None where it stops before. Raises RedisUnusableError where it is there, and cannot be used.
    """
    log, is_away = log or structlog.get_logger("notifier.worker"), False
    while not stops():
        try:
            done = do()
        except (RedisError, RedisAwayError) as error:
            if isinstance(error, RedisError) and not comes_back(error):
                raise unusable(error) from error
            if not is_away:
                log.warning("limiter_unreachable", reason=str(error), waits="until it is there")
            is_away = True
            pause()
        else:
            if is_away:
                log.info("limiter_reachable")
            return done
    return None


def wait_for_redis(connection: Any) -> None:
    """Wait until Redis is there, and say for what; raise RedisUnusableError where it is, and cannot be used."""

    def look() -> str:
        check(connection)
        return eviction_warning(ask(partial(connection.info, "memory")))

    if warning := when_there(look):
        structlog.get_logger("notifier.worker").warning("eviction_unknown", reason=warning)


def those_there_first(served: Sequence[Partition]) -> Sequence[Partition]:
    """Return these, where there are several with one first that answers, and wait for it: there RQ knows the worker.

    Raise RedisUnusableError where one is there, and cannot be used.
    """

    def first() -> Partition:
        for at in served:
            try:
                check(at.client)
            except RedisAwayError as error:
                away = error
            else:
                return at
        raise away

    there = when_there(first) if len(served) > 1 else served[0]
    return sorted(served, key=lambda each: each is not there)
