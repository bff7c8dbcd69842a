"""The section `redis`."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from notifier.errors import SettingsError
from notifier.settings import checks
from notifier.settings.checks import File, Positive, Prefix, RedisUrl, wrong_at
from notifier.settings.memory import check_memory
from notifier.settings.schema_types import Section
from notifier.units import UNITS


class RedisSettings(Section):
    """Where the queues and the limiter live."""

    # Not in the repr: the URL from NOTIFIER_REDIS_URL may contain a password.
    url: RedisUrl = Field(default="redis://localhost:6379/0", repr=False)
    prefix: Prefix = Field(
        default="notifier",
        description="All keys begin with this, in a cluster behind a hash tag. RQ's keys begin with RQ_KEY_PREFIX.",
    )
    partitions: int = Field(
        default=1,
        ge=1,
        le=64,
        description="In a cluster: the number of hash slots over which users are spread. Fixed at the first start."
        " 64 are enough for 16 primaries.",
    )
    password_file: File | None = None
    sentinel_password_file: File | None = None
    ca_file: File | None = None
    cert_file: File | None = None
    cert_key_file: File | None = None
    max_memory: Annotated[str, AfterValidator(check_memory)] | None = None
    wait_replicas: int = Field(default=0, ge=0, le=16)
    socket_timeout_us: Positive = Field(default=5 * UNITS["s"], alias="socket_timeout")

    _partition: int | None = PrivateAttr(None)

    @property
    def partition(self) -> int | None:
        """The partition that these settings are for; None: all of them."""
        return self._partition

    def at(self, partition: int) -> Self:
        one = self.model_copy()
        one._partition = partition  # noqa: SLF001 - of the copy
        return one

    @model_validator(mode="after")
    def _a_key_has_a_certificate(self) -> Self:
        if self.cert_key_file and not self.cert_file:
            raise wrong_at("cert_key_file", "needs cert_file, the certificate that it is the key of")
        return self

    def read_password(self) -> str | None:
        """Return the password in `password_file`, without the line's end; None if no file is named."""
        return _password(self.password_file, "redis.password_file")

    def tls_options(self) -> dict[str, str]:
        """Return redis-py's TLS options for the files that are named.

        Raise SettingsError if a file cannot be used, or if the URL does not use TLS.
        """
        files = {"ssl_ca_certs": "ca_file", "ssl_certfile": "cert_file", "ssl_keyfile": "cert_key_file"}
        given = {option: key for option, key in files.items() if getattr(self, key) is not None}
        for key in given.values():
            if not self.url.startswith("rediss"):
                raise SettingsError(f"redis.{key} is for TLS, and the URL is not: it would begin with rediss://")
            checks.read_secret(getattr(self, key), f"redis.{key}")
        if given:
            self._try_files()
        return {option: str(getattr(self, key)) for option, key in given.items()}

    def _try_files(self) -> None:
        """Load the files as a connection will, in which a bad file would look like an unreachable Redis."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        password = parse_qs(urlsplit(self.url).query).get("ssl_password", [""])[0]  # for None, OpenSSL would prompt
        wrong, needed = f"ca_file: cannot use {self.ca_file}", "it is to hold certificates in PEM"
        try:
            if self.ca_file:
                tls.load_verify_locations(self.ca_file)
            wrong = f"cert_file: cannot use {self.cert_file} with the key in {self.cert_key_file or self.cert_file}"
            needed = "both are to be in PEM, belong together, and have no password"
            if self.cert_file:
                tls.load_cert_chain(self.cert_file, self.cert_key_file, password)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            raise SettingsError(f"redis.{wrong}: {why}; {needed}") from None

    def read_sentinel_password(self) -> str | None:
        """Return the password in `sentinel_password_file`, as `read_password` does."""
        return _password(self.sentinel_password_file, "redis.sentinel_password_file")


def _password(file: Path | None, key: str) -> str | None:
    if file is None:
        return None
    password = checks.read_secret(file, key).rstrip("\r\n")
    if not password:
        raise SettingsError(f"{key}: {file} is empty")
    return password
