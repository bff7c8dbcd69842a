"""FakeNotifier: a Notifier without Redis and without workers, for tests of the code that sends."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast, get_args

import redis
import redis.asyncio

from notifier.errors import ChannelError, SettingsError
from notifier.notification import Notification
from notifier.notification.notification import check_user
from notifier.producer.aio import AsyncNotifier
from notifier.producer.channels import Channels
from notifier.producer.notifier import Notifier
from notifier.providers.apns.broadcast import BroadcastChannel
from notifier.settings import Settings, load_settings, parse_settings, settings_path
from notifier.settings.templates import template
from notifier.testing.memory import Failure, MemoryExchanges
from notifier.units import duration_us

BEGINS: Final = datetime(2030, 1, 7, 12, tzinfo=UTC)  # a Monday at noon: no quiet hours by accident
MANY: Final = 1_000_000  # calls at once


@dataclass(frozen=True, slots=True)
class Sent:
    """A delivered notification, as its devices get it, and the simulated time of its delivery.

    count: how many notifications it stands for: itself, and the ones it superseded.
    """

    job_id: str
    notification: Notification
    at: datetime
    count: int = 1


class FakeChannels(Channels):
    """The `Channels` of one app, in memory."""

    def __init__(self, made: dict[str, bool]) -> None:
        """made: by channel id, whether it stores its last message. Needs no settings: nothing connects to Apple."""
        self._made = made

    def create(self, *, stores: bool = False, app: str | None = None) -> str:  # noqa: ARG002 - as in `Channels`
        channel_id = base64.b64encode(secrets.token_bytes(16)).decode()
        self._made[channel_id] = stores
        return channel_id

    def read(self, channel_id: str, *, app: str | None = None) -> BroadcastChannel:  # noqa: ARG002
        if channel_id not in self._made:
            raise ChannelError("ChannelNotRegistered", 400)
        return BroadcastChannel(channel_id, self._made[channel_id])

    def list(self, *, app: str | None = None) -> list[str]:  # noqa: ARG002
        return [*self._made]

    def delete(self, channel_id: str, *, app: str | None = None) -> None:
        del self._made[self.read(channel_id, app=app).id]


class FakeNotifier(Notifier):
    """A `Notifier` in memory: real validation, the real rules, and simulated time that only `advance` moves.

    It has all methods of `Notifier`. It does not simulate the providers' own limits, retries, `max_waiting` for all
    users, or an `overflow` that makes room. The `status` of a waiting notification does not name the rule.

    Without an argument it uses the configuration that `Notifier` would find, or else the one that `notifier config
    init` writes. It never connects to Redis.
    """

    def __init__(self, config: Settings | str | Path | None = None, *, now: datetime = BEGINS) -> None:
        """config: settings, or the path of a YAML. now: when simulated time begins. Raises TypeError."""
        if not isinstance(now, datetime) or now.utcoffset() is None:
            raise TypeError(f"now must be a datetime with a time zone, is {now!r}")
        settings = config if isinstance(config, Settings) else _settings(config)
        settings = settings.model_copy(update={"redis": settings.redis.model_copy(update={"partitions": 1})})
        self._memory = MemoryExchanges(settings, now)
        self._channels: dict[str, bool] = {}
        super().__init__(redis.Redis(), settings)  # the client never connects
        self._asks = cast("Any", self._memory)

    def _use(self, settings: Settings) -> None:
        super()._use(settings)
        if "aio" in vars(self):
            self.aio._use(settings)  # noqa: SLF001 - a part of this object

    @cached_property
    def aio(self) -> AsyncNotifier:
        """The same notifier as an AsyncNotifier: it shares this outbox and this simulated time."""
        made = AsyncNotifier(redis.asyncio.Redis(), self._settings)
        made._asks = self._asks  # noqa: SLF001 - as above
        made._slots = asyncio.Semaphore(MANY)  # noqa: SLF001 - a wait for a slot would bind it to one event loop
        made._is_used_here = lambda: None  # type: ignore[method-assign] # noqa: SLF001 - any loop may: no connections
        made._leave = lambda *_: None  # type: ignore[method-assign] # noqa: SLF001 - then another loop may use it
        return made

    @property
    def channels(self) -> FakeChannels:
        """Channels in memory. A message to a channel is a message to the user ``channel:<id>``."""
        return FakeChannels(self._channels)

    @property
    def now(self) -> datetime:
        """The simulated time."""
        return self._memory.at(self._memory.now_us)

    def advance(self, by: str | timedelta) -> datetime:
        """Let time pass: ``fake.advance("1m")``. Returns the new time."""
        self._memory.now_us += duration_us(by)
        return self.now

    @property
    def accepted(self) -> Sequence[Notification]:
        """Every accepted notification, in the order of acceptance, whatever became of it."""
        return [entry.notification for entry in self._memory.entries]

    @property
    def outbox(self) -> Sequence[Sent]:
        """Every notification delivered by now, in the order of delivery."""
        return [
            Sent(entry.job_id, self._memory.rendered(entry), self._memory.at(entry.ends_us), entry.count)
            for entry in self._memory.ended
            if self._memory.state(entry) == "delivered"
        ]

    def delivered(self, user: str) -> Sequence[Notification]:
        """Every notification that one user has received by now."""
        check_user(user)
        return [sent.notification for sent in self.outbox if sent.notification.user == user]

    def waiting(self, user: str) -> Sequence[Notification]:
        """Every notification that still waits for one user."""
        check_user(user)
        return [
            entry.notification
            for entry in self._memory.entries
            if entry.notification.user == user and self._memory.state(entry) == "waiting"
        ]

    def fail_next(self, how: Exception | Failure = "rejected", reason: str = "Unregistered") -> None:
        """Let the next notification fail.

        how: an exception, such as RedisUnusableError("…"), is raised by the next `send`, which accepts nothing. With
        'rejected' the provider says that the devices of the next notification are dead, so `feedback` returns them.
        With 'failed' its last attempt fails. If that notification is never sent, the failure is used up.

        Raises ValueError for another word.
        """
        if not isinstance(how, Exception) and how not in get_args(Failure):
            raise ValueError(f"how must be {' or '.join(map(repr, get_args(Failure)))} or an exception, is {how!r}")
        self._memory.failures.append(how if isinstance(how, Exception) else (how, reason))


def _settings(path: str | Path | None) -> Settings:
    if path is None:
        try:
            path = settings_path()
        except SettingsError:
            return parse_settings(template("first"))
    return load_settings(path, {})
