"""Start a worker with a file that nobody is writing, and a Redis that answers."""

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
from notifier.scripts.keys import under
from notifier.settings import Settings, load_settings
from notifier.store.connection import ask, check, comes_back, eviction_warning, unusable
from notifier.store.followed import AGAIN_NS
from notifier.store.partitions import Partition
from workers.loop.watchdog import Signs

T = TypeVar("T")

AGAIN_S: Final = AGAIN_NS / 1e9
PAUSE_S: Final = 0.5  # between two attempts to reach Redis
MAX_LOOKS: Final = 10
GARBAGE: Final = (10_000, 20, 20)  # new objects, and collections of the younger, until the next collection


def load_at_start(path: Path | None) -> Settings:
    """Load the settings once the file is a second old, so that nobody is writing it any more.

    Raise SettingsError if it cannot be used.
    """
    for _ in range(MAX_LOOKS):
        try:
            age_s = 0.0 if path is None else time.time() - path.stat().st_mtime
        except OSError:  # `load_settings` reports it
            break
        if path is None or not 0 <= age_s < AGAIN_S:
            break
        time.sleep(AGAIN_S - age_s)
    return load_settings(path)


def collect_garbage_seldom() -> None:
    """Run the garbage collector seldom, and never over the objects that exist now.

    A send makes dozens of objects and no cycle. With Python's own thresholds the collector takes a tenth of the time.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def pause() -> None:
    """Wait before the next attempt. No event loop runs yet to give the signs of life, so this gives them."""
    Signs(os.environ).give("READY=1", "WATCHDOG=1")
    time.sleep(PAUSE_S)


def when_there(do: Callable[[], T], stops: Callable[[], bool] = lambda: False, log: Any = None) -> T | None:
    """Try `do` until Redis answers, and return its result; the log says once that Redis is away.

    None if `stops` says so before. Raises RedisUnusableError if Redis answers but cannot be used.
    """
    log, is_away = log or structlog.get_logger("notifier.worker"), False
    while not stops():
        try:
            done = do()
        except (RedisError, RedisAwayError) as error:
            told = unusable(error) if isinstance(error, RedisError) else error
            if isinstance(error, RedisError) and not comes_back(error):
                raise told from error
            if not is_away:
                log.warning("limiter_unreachable", reason=str(told), waits="until it is there")
            is_away = True
            pause()
        else:
            if is_away:
                log.info("limiter_reachable")
            return done
    return None


def wait_for_redis(connection: Any) -> None:
    """Wait until Redis answers; raise RedisUnusableError if it cannot be used."""

    def look() -> str:
        check(connection)
        return eviction_warning(ask(partial(connection.info, "memory")))

    if warning := when_there(look):
        structlog.get_logger("notifier.worker").warning("eviction_unknown", reason=warning)


def those_there_first(served: Sequence[Partition]) -> Sequence[Partition]:
    """Return the partitions. If there are several, wait for one that takes writes, and put it first for RQ.

    Raise RedisUnusableError if one answers but cannot be used, or if the last one is full.
    """

    def first() -> Partition:
        for at in served:
            try:
                check(at.client)
                with under(at.prefixes):
                    at.claim()
            except (RedisAwayError, RedisError) as error:
                refused = error
            else:
                return at
        raise refused

    there = when_there(first) if len(served) > 1 else served[0]
    return sorted(served, key=lambda each: each is not there)
