"""URLs of Sentinel and of clusters: ``redis+sentinel://host:26379,…/service/0`` and ``redis+cluster://host:6379,…``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from notifier.errors import URL_SIGNS

SENTINEL_FORM: Final = "redis+sentinel://host:26379,host:26379/service/0"
CLUSTER_FORM: Final = "redis+cluster://host:6379,host:6379"
_PORT: Final = {"sentinel": 26379, "cluster": 6379}
_URL: Final = re.compile(
    r"(rediss?)\+(?:sentinel|cluster)://(?:([^@/]*)@)?([^/@?#]+)(?:/([\w.-]+)(?:/([0-9]{1,5})?)?|/)?"
)
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_PORTS: Final = range(1, 65_536)


@dataclass(frozen=True, slots=True)
class Servers:
    """The parts of a URL. hosts: sentinels, or nodes of a cluster. name: the name that sentinels give the primary."""

    hosts: tuple[tuple[str, int], ...]
    tls: bool
    name: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def is_sentinel(url: str) -> bool:
    return _kind(url) == "sentinel"


def is_cluster(url: str) -> bool:
    return _kind(url) == "cluster"


def parse(url: str) -> Servers:
    """Parse a URL of either kind; raise ValueError, without quoting the URL, if its form is wrong."""
    kind, found = _kind(url), _URL.fullmatch(url)
    hosts = _hosts(found[3], _PORT[kind]) if found else ()
    if not found or not hosts or bool(found[4]) != (kind == "sentinel"):
        if kind == "sentinel":
            raise ValueError(f"is not the URL of a Redis behind Sentinel; write {SENTINEL_FORM}{advice(url)}")
        wrong = "is not the URL of a Redis Cluster, which has no number of a database; write "
        raise ValueError(f"{wrong}{CLUSTER_FORM}{advice(url)}")
    username, _, password = (unquote(part) for part in (found[2] or "").partition(":"))
    return Servers(hosts, found[1] == "rediss", found[4] or "", int(found[5] or 0), username or None, password or None)


def advice(url: str) -> str:
    """Return what to add to the error of a URL that has a password."""
    return f"; {URL_SIGNS}" if "@" in url else ""


def _kind(url: str) -> str:
    found = re.match(r"rediss?\+(sentinel|cluster):", url)
    return found[1] if found else ""


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Return the hosts of a list with commas; () if one of them is no host. port: of hosts that give none."""
    found = [_HOST.fullmatch(part) for part in text.split(",")]
    if not all(host and int(host[2] or port) in _PORTS for host in found):
        return ()
    return tuple((host[1].strip("[]"), int(host[2] or port)) for host in found if host)
