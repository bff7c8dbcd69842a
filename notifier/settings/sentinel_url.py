"""The URL of a Redis behind Sentinel: ``redis+sentinel://host:26379,…/service/0``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

PORT: Final = 26379
FORM: Final = "redis+sentinel://host:26379,host:26379/service/0"
_URL: Final = re.compile(r"(rediss?)\+sentinel://(?:([^@/]*)@)?([^/@?#]+)/([\w.-]+)(?:/([0-9]{1,5})?)?")
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_PORTS: Final = range(1, 65_536)


@dataclass(frozen=True, slots=True)
class Service:
    """What a URL says: the sentinels (host, port), and the primary they know by `name`."""

    name: str
    sentinels: tuple[tuple[str, int], ...]
    database: int
    tls: bool
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def is_sentinel(url: str) -> bool:
    """Whether a URL means Sentinel."""
    return re.match(r"rediss?\+sentinel:", url) is not None


def parse(url: str) -> Service:
    """Read a URL; raises ValueError, without quoting it, for another form."""
    found = _URL.fullmatch(url)
    hosts = [_HOST.fullmatch(part) for part in found[3].split(",")] if found else []
    if found is None or not all(host and int(host[2] or PORT) in _PORTS for host in hosts):
        raise ValueError(f"is not the URL of a Redis behind Sentinel; write {FORM}")
    sentinels = tuple((host[1].strip("[]"), int(host[2] or PORT)) for host in hosts if host)
    username, _, password = (found[2] or "").partition(":")
    return Service(
        name=found[4],
        sentinels=sentinels,
        database=int(found[5] or 0),
        tls=found[1] == "rediss",
        username=unquote(username) or None,
        password=unquote(password) or None,
    )
