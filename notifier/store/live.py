"""The settings in force in a program: those of its file, with the rates published through Redis in place of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from notifier.errors import RedisUnusableError, SettingsError
from notifier.settings import Settings, settings_path
from notifier.store.connection import redis_answers
from notifier.store.followed import Followed
from notifier.store.partitions import Partitions, connect_all

LOG: Final = logging.getLogger("notifier")  # the program that uses this library configures it
LOOK_S: Final = 0.8  # a changed file is read once nobody has written it for a second, so within two seconds
TIMEOUT_US: Final = 1_000_000  # for each of the two tries of a look: a program's first call waits for a look


class LiveSettings:
    """Follows a configuration for one Notifier or Limiter, in a thread of its own, from the first call on.

    A change that cannot be used is logged, and the settings in force stay. Changes of the section redis have no effect.
    After a fork the child begins anew.
    """

    def __init__(self, path: str | Path | None, environ: Mapping[str, str]) -> None:
        """path, environ: see `load_settings`. Raises SettingsError where they cannot be used."""
        self._followed = Followed(settings_path(path, environ).absolute(), environ)  # a daemon may change its folder
        self._take_up: Callable[[], Callable[[Settings], object] | None] = lambda: None
        self._process = 0  # the id of the process whose thread looks
        self._begin_anew()

    @property
    def settings(self) -> Settings:
        return self._followed.settings

    def follow(self, take_up: Callable[[Settings], object]) -> None:
        """take_up: a method, called with changed settings for as long as its object lives."""
        self._take_up = weakref.WeakMethod(take_up)

    @property
    def has_begun(self) -> bool:
        """Whether a thread of this process looks: `begin` was called, and not `close`."""
        return self._process == os.getpid() and not self._closed.is_set()

    def begin(self) -> None:
        """Look once, for two seconds at most if Redis hangs, and start the thread that goes on looking."""
        if self.has_begun:
            return
        self._process = os.getpid()
        self._begin_anew()
        self._look()
        # The thread holds no reference to the owner. So it also ends when an owner is collected that nobody closed.
        with suppress(RuntimeError):  # an interpreter that ends starts no thread
            threading.Thread(target=self._keep_looking, name="notifier-follows-rates", daemon=True).start()

    async def begin_async(self) -> None:
        """As `begin`, in a thread of its own: the program's work may occupy all threads of the loop's executor."""
        own = ThreadPoolExecutor(1)
        with suppress(RuntimeError):  # an interpreter that ends starts no thread
            await asyncio.get_running_loop().run_in_executor(own, self.begin)
        own.shutdown(wait=False)

    def close(self) -> None:
        if self.has_begun:  # otherwise a thread of the parent may hold the event's lock
            self._closed.set()

    def reload(self) -> None:
        """Read the configuration as it is now. Raises SettingsError, and RedisUnusableError if Redis is away."""
        with redis_answers(), self._followed.lock:
            self._use(self._followed.reload(self._ask))

    def _begin_anew(self) -> None:
        # After a fork, a thread that the child does not have may hold the locks of the parent's objects.
        self._closed = threading.Event()
        self._partitions: Partitions | None = None

    def _keep_looking(self) -> None:
        closed = self._closed
        while not closed.wait(LOOK_S) and self._take_up() is not None:
            self._look()
        if self._partitions is not None and self._closed is closed:  # otherwise a call after `close` has made it
            self._partitions.close()

    def _look(self) -> None:
        try:
            with self._followed.lock:
                if (settings := self._followed.look(self._ask)) is not None:
                    self._use(settings)
                    LOG.info("changed configuration taken up: rates %s", settings.rates_version)
        except (RedisError, RedisUnusableError):
            return  # the next look tries again
        except SettingsError as error:
            if self._followed.is_news:
                LOG.warning("changed configuration refused, the one in force holds on: %s", error)

    def _use(self, settings: Settings) -> None:
        if (take_up := self._take_up()) is not None:
            take_up(settings)

    def _ask(self, question: Callable[[Redis], Any]) -> Any:
        if self._partitions is None:
            of = self.settings.redis
            hasty = of.model_copy(update={"socket_timeout_us": min(of.socket_timeout_us, TIMEOUT_US)})
            self._partitions = connect_all(hasty)
        return self._partitions.ask_any(question)
