"""The common part of Notifier and AsyncNotifier: how they are made, and the configuration that they follow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification.notification import check_user
from notifier.producer.cancel import NEITHER, Cancellation, check_job_id, kind_of
from notifier.producer.exchanges import CHUNK, Exchanges, Status
from notifier.producer.jobs import JobBuilder
from notifier.producer.routing import Split
from notifier.producer.users import Edits
from notifier.queue import calls
from notifier.queue.history import Record
from notifier.rules.policies import Policies
from notifier.store.exchange import Exchange
from notifier.store.partitions import Partition, Partitions

if TYPE_CHECKING:
    from notifier.settings import Settings
    from notifier.settings.schema_redis import RedisSettings
    from notifier.store.live import LiveSettings


class Producer:
    """A producer by its settings: its exchanges with Redis, which a subclass runs on its kind of client."""

    _takes: ClassVar[type]

    def __init__(self, client: Any, settings: Settings) -> None:
        """See `from_config`. client: of `_takes`, or `Partitions`. Raises SettingsError, and TypeError for others."""
        if not isinstance(client, (self._takes, Partitions)) or _answers_otherwise(client):
            takes = f"{self._takes.__module__.removesuffix('.client')}.Redis(decode_responses=False, protocol=2)"
            raise TypeError(f"{type(self).__name__} takes a {takes}, or is made by from_config")
        self._partitions = Partitions.around(client)
        if len(self._partitions) != settings.redis.partitions:
            raise SettingsError(f"redis.partitions is {settings.redis.partitions}: make it by `of` or `from_config`")
        self._settings = settings
        self._asks = self._exchanges_of(settings)
        self._jobs = JobBuilder(settings, self._partitions)
        self._live: LiveSettings | None = None
        self._asked_first = False
        self._follows = False

    @classmethod
    def from_config(
        cls, path: str | Path | None = None, environ: Mapping[str, str] = os.environ, *, follow: bool = True
    ) -> Self:
        """One by the YAML at `path`, at `NOTIFIER_CONFIG`, or at config/notifier.yaml.

        follow: from the first call on, a thread looks for changes: of the file, and of the rates that
        `notifier config apply` has published. They hold within two seconds; the section redis stays as it was.
        Raises SettingsError where the configuration cannot be used.
        """
        from notifier.store.live import LiveSettings  # noqa: PLC0415 - who has settings needs neither YAML nor pydantic

        live = LiveSettings(path, environ)
        made = cls(cls._connect(live.settings.redis), live.settings)
        live.follow(made._use)
        made._live, made._follows = live, follow
        return made

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """One by these settings."""
        return cls(cls._connect(settings.redis), settings)

    @property
    def policies(self) -> Policies:
        """The rules of the configuration, by user and category."""
        return self._builder.policies

    @property
    def _builder(self) -> JobBuilder:
        self._begin()
        return self._jobs

    @property
    def _exchanges(self) -> Exchanges:
        self._begin()
        return self._asks

    def _begin(self) -> None:
        """Begin to follow the configuration, if that has not begun: no call comes by without one of the two above."""

    @staticmethod
    def _connect(config: RedisSettings) -> Any:
        raise NotImplementedError

    @staticmethod
    def _exchanges_of(settings: Settings) -> Exchanges:
        return Exchanges(settings)

    @property
    def _edits(self) -> Edits:
        return Edits(lambda: self.policies)

    def _file(self) -> LiveSettings:
        if self._live is None:
            whose = type(self).__name__
            raise SettingsError(f"this {whose} was made without a file; only one of from_config can reload")
        return self._live

    def _use(self, settings: Settings) -> None:
        self._settings = settings
        self._asks.use(settings)
        self._jobs.use(settings)

    def _cancel(
        self, job_id: str | None, user: str | None, category: str | None, collapse_id: str | None, tag: str | None
    ) -> tuple[str, Exchange[Cancellation]]:
        """Build the call that cancels. Raises TypeError where it is not said, and InvalidNotificationError."""
        if job_id is not None or user is None:
            raise TypeError(NEITHER)
        user = check_user(user)
        return user, self._exchanges.cancel_of(user, kind_of(category, collapse_id, tag))

    def _history(self, user: str, since: timedelta | None) -> tuple[str, Exchange[list[Record]]]:
        """Build the call of `history`. Raises InvalidNotificationError."""
        if since is not None and not isinstance(since, timedelta):
            raise InvalidNotificationError("since", f"must be a timedelta, is {type(since).__name__}")
        user = check_user(user)
        return user, self._exchanges.history(user, since)

    @property
    def _chunk(self) -> int:
        """How many notifications `send_many` hands over at once."""
        return CHUNK * len(self._partitions)

    def _unagreed(self) -> Partition | None:
        """The first partition, to be asked before anything is sent: there it is known how many there are."""
        first = self._partitions[0]
        return None if self._asked_first or first.is_checked else first

    def _split(self, jobs: Sequence[calls.Job]) -> Split:
        return Split([self._partitions.of_user(job.user)] for job in jobs)

    def _where(self, job_id: str) -> Sequence[Partition]:
        return self._partitions.of_job(check_job_id(job_id))

    def _status(self, job_id: str, user: str | None) -> list[tuple[Partition, Exchange[Status | None]]]:
        """Build the calls of `status`, by where they ask. Raises InvalidNotificationError."""
        where = self._where(job_id)
        if user is not None:
            user = check_user(user)
            where = [self._partitions.of_user(user)]
        return [(at, self._exchanges.status(job_id, user)) for at in where]


def _answers_otherwise(client: Any) -> bool:
    """Whether its replies have other types or shapes than are read here, such as text in place of bytes."""
    options = {} if isinstance(client, Partitions) else client.connection_pool.connection_kwargs
    return bool(options.get("decode_responses") or str(options.get("protocol")) == "3")
