"""What the endpoints share: the connections, the settings that hold, and threads that wait for Redis in their place."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from notifier.errors import RedisUnusableError
from notifier.operations.audit.background import BackgroundAudit
from notifier.operations.in_force import InForce, Known
from notifier.operations.route_view import limited_routes
from notifier.operations.stats import read_stats
from notifier.operations.traffic import Traffic
from notifier.producer.notifier import Notifier
from notifier.server.answers import BusyError
from notifier.server.feed import Feed
from notifier.server.metrics import Metrics
from notifier.server.webhook import Webhook
from notifier.settings import load_settings
from notifier.shards.map import connect_all, on_shard
from notifier.store.connection import ask
from notifier.units import clock_us, moment

T = TypeVar("T")
ANSWER_S: Final = 4.0  # a Redis that hangs is answered for by then
PREVIEW_S: Final = 60.0
THREADS: Final = 8
MAX_ASKED: Final = 32  # at once; more are turned away, so that a Redis that hangs fills no memory


class State:
    """The one of a server. may_act: whether there is a token, without which nothing is changed."""

    def __init__(self, path: Path, *, may_act: bool) -> None:
        """Raises SettingsError."""
        self.path = path
        self.may_act = may_act
        settings = load_settings(path, rates={})
        self._stack = ExitStack()
        self.clients = dict(self._stack.enter_context(connect_all(settings)))
        self.in_force = InForce(path, self.clients, settings)
        self.metrics = Metrics(self.clients, limited_routes(settings))
        self.traffic = Traffic(self.clients)
        self.audit = BackgroundAudit(self.clients)
        self.feed = Feed(lambda minutes: self.in_time(lambda: self._live_numbers(minutes)))
        self.previewing = threading.Lock()
        hook = settings.events.webhook
        self.webhook = None if hook is None else Webhook(self.clients, hook, partial(hook.read_secret, os.environ))
        self._making = threading.Lock()
        self._made: tuple[Known, Notifier] | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="serve")
        self._asked = 0

    async def in_time(self, do: Callable[[], T], seconds: float | None = None) -> T:
        """Do it in a thread; raise BusyError where that takes too long, or too many ask."""
        if self._asked >= MAX_ASKED:
            raise BusyError
        self._asked += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, do)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), ANSWER_S if seconds is None else seconds)
        except TimeoutError:
            raise BusyError from None

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._asked -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left who asks for it

    def notifier(self) -> Notifier:
        """A producer by the settings that hold now."""
        known = self.in_force.read()
        with self._making:
            if self._made is None or self._made[0] is not known:
                # The old one may be in use still; its connections are closed with it.
                clients = list(self.clients.values())
                made = Notifier.of(known.settings) if len(clients) > 1 else Notifier(clients[0], known.settings)
                self._made = known, made
            return self._made[1]

    def live(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The clients of the shards that answer, and what is wrong with the others.

        Raises RedisUnusableError where none answers.
        """
        live, dead = dict[str, Any](), dict[str, str]()
        for name, redis in self.clients.items():
            try:
                with on_shard(name):
                    ask(redis.ping)
                live[name] = redis
            except RedisUnusableError as error:
                if len(dead) + 1 == len(self.clients):
                    raise
                dead[name] = str(error)
        return live, dead

    def _live_numbers(self, minutes: int) -> dict[str, Any]:
        live, dead = self.live()
        return read_stats(live, minutes).as_live() | {"dead": dead}

    def now(self) -> datetime:
        """The time by Redis's clock: of the first shard that answers."""
        *others, last = self.clients.values()
        for redis in others:
            try:
                return _time(redis)
            except RedisUnusableError:
                continue
        return _time(last)

    def close(self) -> None:
        """Close the connections."""
        self.traffic.stop()
        if self.webhook is not None:
            self.webhook.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stack.close()


def _time(redis: Any) -> datetime:
    return moment(clock_us(ask(redis.time)))
