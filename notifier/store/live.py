"""The settings of a program as of now: those of its file, or the rates that were published through Redis."""

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

LOG: Final = logging.getLogger("notifier")  # it speaks in somebody else's program
LOOK_S: Final = 0.8  # a changed file is read once nobody has written it for a second, so within two
TIMEOUT_US: Final = 1_000_000  # of a look at Redis, which asks twice: the first call waits for one


class LiveSettings:
    """Follows a configuration for one Notifier or Limiter, in a thread of its own, from the first call on.

    What cannot be used is logged, and the settings in force hold on. Redis and its password stay as they were. After a
    fork the child begins anew.
    """

    def __init__(self, path: str | Path | None, environ: Mapping[str, str]) -> None:
        """path, environ: see `load_settings`. Raises SettingsError where they cannot be used."""
        self._followed = Followed(settings_path(path, environ).absolute(), environ)  # a daemon changes its folder
        self._take_up: Callable[[], Callable[[Settings], object] | None] = lambda: None
        self._process = 0  # that in which it looks
        self._begin_anew()

    @property
    def settings(self) -> Settings:
        return self._followed.settings

    def follow(self, take_up: Callable[[Settings], object]) -> None:
        """take_up: a method, called with changed settings for as long as its object lives."""
        self._take_up = weakref.WeakMethod(take_up)

    @property
    def has_begun(self) -> bool:
        """Whether it looks in this process, and was not closed."""
        return self._process == os.getpid() and not self._closed.is_set()

    def begin(self) -> None:
        """Look once, for two seconds at most where Redis hangs, and from then on again and again."""
        if self.has_begun:
            return
        self._process = os.getpid()
        self._begin_anew()
        self._look()
        # It holds no reference to its owner, so one that nobody closed ends it too.
        with suppress(RuntimeError):  # the interpreter ends, and begins no thread any more
            threading.Thread(target=self._keep_looking, name="notifier-follows-rates", daemon=True).start()

    async def begin_async(self) -> None:
        """As `begin`, in a thread of its own: those of the loop may all be busy with the program's work."""
        own = ThreadPoolExecutor(1)
        with suppress(RuntimeError):  # the interpreter ends, and begins no thread any more
            await asyncio.get_running_loop().run_in_executor(own, self.begin)
        own.shutdown(wait=False)

    def close(self) -> None:
        if self.has_begun:  # else it may be held by a thread of the parent
            self._closed.set()

    def reload(self) -> None:
        """Take up what holds now. Raises SettingsError, and RedisUnusableError where Redis does not answer."""
        with redis_answers(), self._followed.lock:
            self._use(self._followed.reload(self._ask))

    def _begin_anew(self) -> None:
        # What a fork leaves behind may be held by a thread that is not there any more.
        self._closed = threading.Event()
        self._partitions: Partitions | None = None

    def _keep_looking(self) -> None:
        closed = self._closed
        while not closed.wait(LOOK_S) and self._take_up() is not None:
            self._look()
        if self._partitions is not None and self._closed is closed:  # else it is that of a call after `close`
            self._partitions.close()

    def _look(self) -> None:
        try:
            with self._followed.lock:
                if (settings := self._followed.look(self._ask)) is not None:
                    self._use(settings)
                    LOG.info("changed configuration taken up: rates %s", settings.rates_version)
        except (RedisError, RedisUnusableError):
            return  # at the next look
        except SettingsError as error:
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
