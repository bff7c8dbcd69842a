"""The state that all endpoints share: connections, settings in force, and threads that wait for Redis."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from notifier.errors import SettingsError
from notifier.operations.in_force import InForce, Known
from notifier.operations.route_view import limited_routes, routes_of
from notifier.operations.stats import Stats, read_stats
from notifier.operations.traffic import Traffic
from notifier.producer.notifier import Notifier
from notifier.server.answers import REDIS_DOWN, ProblemError
from notifier.server.feed import Feed
from notifier.server.metrics import Metrics
from notifier.server.webhook import Webhook
from notifier.settings import Settings, load_settings
from notifier.store.cluster import owner_of
from notifier.store.connection import time_us
from notifier.store.partitions import connect_all
from notifier.units import moment

T = TypeVar("T")
ANSWER_S: Final = 4.0  # after this, the answer is a problem
PREVIEW_S: Final = 60.0
THREADS: Final = 8
MAX_ASKED: Final = 1_000  # at once; more are refused, so that requests do not fill the memory while Redis hangs
TOO_MANY: Final = ("Too many ask", "more ask at once than can be answered in time; try again later")


def _hasty(settings: Settings) -> Settings:
    """Shorten the socket timeout: two in a row must end before ANSWER_S, so that the answer names the cause."""
    redis = settings.redis
    waits_us = min(redis.socket_timeout_us, 1_000_000 if redis.partitions > 1 else 1_500_000)
    return settings.model_copy(update={"redis": redis.model_copy(update={"socket_timeout_us": waits_us})})


class State:
    """The state of one server. redis: all partitions."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError."""
        self.path = path
        settings = load_settings(path, rates={})
        self.redis = connect_all(_hasty(settings).redis)
        for owner in filter(None, (owner_of(at.client) for at in self.redis)):
            owner.rest_s = ANSWER_S  # an answer has time for one wait for a silent node
        self.redis.agree()
        self.in_force = InForce(path, self.redis, settings)
        self.metrics = Metrics(self.redis, routes_of(settings), limited_routes(settings), self._limits)
        self.traffic = Traffic(self.redis)
        self.feed = Feed(lambda minutes: self.in_time(lambda: self.stats(minutes).by_minute()))
        self.previewing = threading.Lock()
        hook = settings.events.webhook
        self.webhook = None if hook is None else Webhook(self.redis, hook, partial(hook.read_secret, os.environ))
        self._making = threading.Lock()
        self._made: tuple[Known, Notifier] | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="serve")
        self._asked = 0
        self.not_ready = ""  # why not, when somebody last asked
        self.answered_at: datetime | None = None  # when Redis last answered; scrapes do not set it

    async def in_time(self, do: Callable[[], T], seconds: float | None = None, *, apart: bool = False) -> T:
        """Run `do` in a thread when one is free. Raises ProblemError if that takes too long, or if too many wait.

        apart: in a thread of another pool, however many wait.
        """
        if self._asked >= MAX_ASKED and not apart:
            raise ProblemError(503, *TOO_MANY)
        self._asked += 1
        answered_at = self.answered_at
        future = asyncio.get_running_loop().run_in_executor(None if apart else self._threads, do)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), ANSWER_S if seconds is None else seconds)
        except TimeoutError:
            others_are_answered = self.answered_at != answered_at
            if others_are_answered:
                raise ProblemError(503, *TOO_MANY) from None
            raise ProblemError(503, "Redis does not answer", "it took too long", help=REDIS_DOWN) from None

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._asked -= 1
        _ = future.cancelled() or future.exception()  # reads the exception: its caller may have gone

    def notifier(self) -> Notifier:
        """A producer with the settings in force."""
        known = self.in_force.read()
        self.answered_at = datetime.now(UTC)
        with self._making:
            if self._made is None or self._made[0] is not known:
                self._made = known, Notifier(self.redis, _hasty(known.settings))
            return self._made[1]

    def _limits(self) -> Collection[str]:
        try:
            return self.in_force.read().limits
        except SettingsError:  # the other metrics are still right
            return ()

    def stats(self, minutes: int) -> Stats:
        found = read_stats(self.redis, minutes)
        self.answered_at = datetime.now(UTC)
        return found

    def now(self) -> datetime:
        """The time by Redis's clock."""
        now = moment(self.redis.ask_any(time_us))
        self.answered_at = datetime.now(UTC)
        return now

    def close(self) -> None:
        self.traffic.stop()
        if self.webhook is not None:
            self.webhook.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.redis.close()
