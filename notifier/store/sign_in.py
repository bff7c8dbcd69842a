"""How connections sign in to Redis: each new one by what stands in the files then, so that these can change."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.credentials import CredentialProvider

from notifier.errors import SettingsError

if TYPE_CHECKING:
    from notifier.settings import RedisSettings


class PasswordFile(CredentialProvider):
    """The password for each new connection, of the file as it is then; the last good one where that cannot be used."""

    def __init__(self, username: str | None, read: Callable[[], str | None]) -> None:
        """read: raises SettingsError, here too."""
        self._username, self._read = username, read
        self._password = read() or ""
        self._problem = ""

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """See redis-py."""
        try:
            self._password, self._problem = self._read() or "", ""
        except SettingsError as error:
            if self._problem != str(error):  # once, not for each connection
                _refused(str(error))
            self._problem = str(error)
        return (self._username, self._password) if self._username else (self._password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """See redis-py."""
        return self.get_credentials()


def by_file(options: Mapping[str, Any], read: Callable[[], str | None]) -> dict[str, Any]:
    """These options of connections with the password of a file, unless they have one or there is no file.

    Raises SettingsError where the file cannot be used.
    """
    if options.get("password") or read() is None:
        return dict(options)
    kept = {name: value for name, value in options.items() if name not in {"username", "password"}}
    return {**kept, "credential_provider": PasswordFile(options.get("username"), read)}


def read_files_again(client: Any, config: RedisSettings) -> None:
    """Let each connection that this client will open read the files of `redis` again. Raises as `by_file`."""
    pool = client.connection_pool
    kwargs = by_file(pool.connection_kwargs, config.read_password)
    pool.connection_kwargs.clear()
    pool.connection_kwargs.update(kwargs)
    if issubclass(pool.connection_class, redis.asyncio.SSLConnection):
        pool.connection_class = renewing(pool.connection_class)


class _Renewing:
    """An asyncio connection over TLS that reads its certificates whenever it connects, as redis-py's others do."""

    ssl_context: Any

    def _connection_arguments(self) -> Any:
        kept, self.ssl_context.context = self.ssl_context.context, None
        try:
            return super()._connection_arguments()  # type: ignore[misc]
        except (OSError, ssl.SSLError) as error:
            if kept is None:
                raise
            why = f"redis: the files for TLS cannot be used: {getattr(error, 'reason', None) or type(error).__name__}"
            _refused(why)
            self.ssl_context.context = kept
            return super()._connection_arguments()  # type: ignore[misc]


@cache
def renewing(connection_class: type) -> type:
    """The same class of asyncio connections over TLS, but reading its certificates whenever it connects."""
    return type(f"Renewing{connection_class.__name__}", (_Renewing, connection_class), {})


def _refused(problem: str) -> None:
    import structlog  # noqa: PLC0415 - a producer loads it where it has something to say

    structlog.get_logger(__name__).error("secrets_refused", platform="redis", problems=[problem])
