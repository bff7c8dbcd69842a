"""The section `redis`: the server, or the shards over which the users are spread."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from notifier.errors import SettingsError
from notifier.settings import checks
from notifier.settings.checks import wrong_at
from notifier.settings.memory import check_memory
from notifier.settings.schema_types import File, Positive, Section
from notifier.units import UNITS


class ShardSettings(Section):
    """One of several servers. Users are spread by the names, so a server that moves keeps its name and its users."""

    name: Annotated[str, checks.SHARD] = Field(description="By which its users are found; it never changes.")
    # Not in the repr: as redis.url.
    url: Annotated[str, checks.REDIS_URL] = Field(repr=False, description="As redis.url.")
    password_file: File | None = Field(default=None, description="A password of its own; else redis.password_file.")
    joining: bool = Field(default=False, description="Users are yet to be moved to it, by `notifier shards move`.")


def _named_by_its_url(value: Any) -> Any:
    return {"name": checks.shard_of_url(value), "url": value} if isinstance(value, str) else value


Shard = Annotated[ShardSettings, BeforeValidator(_named_by_its_url, json_schema_input_type=str | ShardSettings)]


class RedisSettings(Section):
    """Where the queues and the limiter live."""

    # Not in the repr: NOTIFIER_REDIS_URL may bring a password into it.
    url: Annotated[str, checks.REDIS_URL] = Field(default="redis://localhost:6379/0", repr=False)
    shards: Annotated[tuple[Shard, ...], checks.SHARDS] = ()
    prefix: Annotated[str, checks.PREFIX] = Field(
        default="notifier", description="What the names of all keys begin with; RQ's own begin with RQ_KEY_PREFIX."
    )
    password_file: File | None = None
    sentinel_password_file: File | None = None
    ca_file: File | None = None
    cert_file: File | None = None
    cert_key_file: File | None = None
    max_memory: Annotated[str, AfterValidator(check_memory)] | None = None
    wait_replicas: int = Field(default=0, ge=0, le=16)
    socket_timeout_us: Positive = Field(default=5 * UNITS["s"], alias="socket_timeout")

    @model_validator(mode="after")
    def _a_key_has_a_certificate(self) -> Self:
        if self.cert_key_file and not self.cert_file:
            raise wrong_at("cert_key_file", "needs cert_file, the certificate that it is the key of")
        return self

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if not self.shards:
            return self
        if "url" in self.model_fields_set:
            raise wrong_at("url", "cannot be used together with shards; give one of the two")
        names = [shard.name for shard in self.shards]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise wrong_at("shards", f"{twice[0]!r} is there twice; each shard needs a name of its own")
        if all(shard.joining for shard in self.shards):
            raise wrong_at("shards", "all are joining; at least one must already have the users")
        return self

    def which(self, given: str | None) -> str:
        """Return the name of the shard that is meant by its name or its place, from '1'; '' where there are none.

        Raise SettingsError where it is not one of them, or where there are several and None is given.
        """
        names = [shard.name for shard in self.shards]
        listed = f"redis.shards lists {', '.join(names)}"
        if given is None:
            if names:
                raise SettingsError(f"{listed}: say which one, by --shard NAME or NOTIFIER_SHARD")
            return ""
        if not names:
            raise SettingsError(f"there is no shard {given!r}: the configuration has one Redis, and no redis.shards")
        found = dict(zip(map(str, range(1, len(names) + 1)), names, strict=True)) | {name: name for name in names}
        if given not in found:
            raise SettingsError(f"there is no shard {given!r}; {listed}")
        return found[given]

    def shard(self, name: str) -> RedisSettings:
        """Return the settings of one shard alone; of '', these, which must be of one Redis."""
        for shard in self.shards:
            if shard.name == name:
                password_file = shard.password_file or self.password_file
                return self.model_copy(update={"url": shard.url, "shards": (), "password_file": password_file})
        self.which(name or None)
        return self

    def read_password(self) -> str | None:
        """Return what stands in `password_file`, without the line's end; None where no file is named."""
        return _password(self.password_file, "redis.password_file")

    def tls_options(self) -> dict[str, str]:
        """What redis-py opens TLS with, where files are named.

        Raise SettingsError if a file cannot be read, or if the URL is not one of TLS.
        """
        files = {"ssl_ca_certs": "ca_file", "ssl_certfile": "cert_file", "ssl_keyfile": "cert_key_file"}
        given = {option: key for option, key in files.items() if getattr(self, key) is not None}
        for key in given.values():
            if not self.url.startswith("rediss"):
                raise SettingsError(f"redis.{key} is for TLS, and the URL is not: it would begin with rediss://")
            checks.read_secret(getattr(self, key), f"redis.{key}")
        return {option: str(getattr(self, key)) for option, key in given.items()}

    def read_sentinel_password(self) -> str | None:
        """Return what stands in `sentinel_password_file`, as `read_password` does."""
        return _password(self.sentinel_password_file, "redis.sentinel_password_file")


def _password(file: Path | None, key: str) -> str | None:
    if file is None:
        return None
    password = checks.read_secret(file, key).rstrip("\r\n")
    if not password:
        raise SettingsError(f"{key}: {file} is empty")
    return password
