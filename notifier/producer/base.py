"""What Notifier and AsyncNotifier have in common: how they are made, and the configuration that they follow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from notifier.dispatch import calls
from notifier.errors import NotifierError, SettingsError
from notifier.notification.notification import check_user
from notifier.producer.cancel import NEITHER, Cancellation, kind_of
from notifier.producer.exchanges import Exchanges, Sending
from notifier.producer.jobs import JobBuilder
from notifier.producer.users import Edits
from notifier.rules.policies import Policies
from notifier.shards.exchanges import ShardExchanges
from notifier.store.exchange import Exchange

if TYPE_CHECKING:
    from notifier.producer.live import LiveSettings
    from notifier.settings import Settings
    from notifier.settings.schema_redis import RedisSettings


class Producer:
    """A producer by its settings: its exchanges with Redis, which a subclass runs on its kind of client."""

    def __init__(self, client: Any, settings: Settings) -> None:
        """`from_config` builds one from the YAML. client: of one Redis; with `redis.shards`, those of each, by name."""
        self._redis = client
        self._settings = settings
        self._exchanges = self._exchanges_of(client, settings)
        self._builder = JobBuilder(settings)
        self._live: LiveSettings | None = None
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
        from notifier.producer.live import LiveSettings  # noqa: PLC0415 - who has settings needs neither YAML nor pydantic

        live = LiveSettings(path, environ)
        made = cls(cls._client(live.settings), live.settings)
        live.follow(made._use)
        made._live, made._follows = live, follow
        return made

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """One by these settings."""
        return cls(cls._client(settings), settings)

    @property
    def policies(self) -> Policies:
        """The rules of the configuration, by user and category."""
        return self._builder.policies

    @classmethod
    def _client(cls, settings: Settings) -> Any:
        names = [shard.name for shard in settings.redis.shards]
        return {name: cls._connect(settings.redis.shard(name)) for name in names} or cls._connect(settings)

    @staticmethod
    def _connect(settings: Settings | RedisSettings) -> Any:
        raise NotImplementedError

    def _exchanges_of(self, client: Any, settings: Settings) -> Exchanges | ShardExchanges:
        return ShardExchanges(settings) if isinstance(client, Mapping) else Exchanges(settings)

    @property
    def _clients(self) -> list[Any]:
        return list(self._redis.values()) if isinstance(self._redis, Mapping) else [self._redis]

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
        self._exchanges.use(settings)
        self._builder.use(settings)

    def _cancel(
        self, job_id: str | None, user: str | None, category: str | None, collapse_id: str | None, tag: str | None
    ) -> Exchange[calls.Cancelled | Cancellation]:
        if job_id is not None and user is category is collapse_id is tag is None:
            return (yield from self._exchanges.cancel([job_id]))[0]
        if job_id is not None or user is None:
            raise TypeError(NEITHER)
        return (yield from self._exchanges.cancel_of(user, kind_of(user, category, collapse_id, tag)))

    def _forget(self, user: str, *, hard: bool) -> Exchange[Cancellation]:
        check_user(user)
        return (yield from self._exchanges.forget(user, hard=hard))


@contextmanager
def checked(sending: Sending) -> Iterator[None]:
    """Raise in the end for what could not be accepted."""
    try:
        yield
    except NotifierError:
        sending.check()  # what was refused before that goes first: whoever sent them has to know
        raise
    sending.check()


class Opened(dict[str, Any]):
    """Something of each client, by its name, made where it is first asked for."""

    def __init__(self, clients: Mapping[str, Any], make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._clients = clients
        self._make = make

    def __missing__(self, name: str) -> Any:
        made = self[name] = self._make(self._clients[name])
        return made
