"""Sign-in to Redis: each new connection reads the password and certificate files again, so that they can change."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.credentials import CredentialProvider

from notifier.settings.secret_files import LastGood, refuse

if TYPE_CHECKING:
    from notifier.settings import RedisSettings


class PasswordFile(CredentialProvider):
    """Reads the password file for each new connection. If the file cannot be used, the last good password stays."""

    def __init__(self, username: str | None, read: Callable[[], str | None]) -> None:
        """read: raises SettingsError, here too."""
        self._username = username
        self._password = LastGood("redis", read)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password()
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def by_file(options: Mapping[str, Any], read: Callable[[], str | None]) -> dict[str, Any]:
    """These options of connections with the password of a file, unless they have one or there is no file.

    Raises SettingsError if the file cannot be used.
    """
    if options.get("password") or read() is None:
        return dict(options)
    kept = {name: value for name, value in options.items() if name not in {"username", "password"}}
    return {**kept, "credential_provider": PasswordFile(options.get("username"), read)}


def read_files_again(client: Any, config: RedisSettings) -> None:
    """Let each new connection of this client read the password file of `redis` again. Raises as `by_file`."""
    pool = client.connection_pool
    kwargs = by_file(pool.connection_kwargs, config.read_password)
    pool.connection_kwargs.clear()
    pool.connection_kwargs.update(kwargs)


class _Renewing:
    """An asyncio connection over TLS that reads its certificates whenever it connects, as redis-py's synchronous do."""

    ssl_context: Any
    _problem = ""  # the last one; all connections share it, so that it is logged once

    def _connection_arguments(self) -> Any:
        kept, self.ssl_context.context = self.ssl_context.context, None
        before, _Renewing._problem = _Renewing._problem, ""
        try:
            return super()._connection_arguments()  # type: ignore[misc]
        except (OSError, ssl.SSLError) as error:
            if kept is None:
                raise
            why = f"redis: the files for TLS cannot be used: {getattr(error, 'reason', None) or type(error).__name__}"
            if why != before:
                refuse("redis", why)
            _Renewing._problem, self.ssl_context.context = why, kept
            return super()._connection_arguments()  # type: ignore[misc]


def async_class(connection_class: type) -> type:
    """The asyncio counterpart of a class of synchronous connections."""
    if issubclass(connection_class, redis.UnixDomainSocketConnection):
        return redis.asyncio.UnixDomainSocketConnection
    is_tls = issubclass(connection_class, redis.SSLConnection)
    return renewing(redis.asyncio.SSLConnection) if is_tls else redis.asyncio.Connection


@cache
def renewing(connection_class: type) -> type:
    """A subclass for asyncio connections over TLS that reads its certificates whenever it connects."""
    return type(f"Renewing{connection_class.__name__}", (_Renewing, connection_class), {})
