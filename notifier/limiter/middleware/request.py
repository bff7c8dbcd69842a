"""A web request as limits see it, whichever framework received it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

UNIX: Final = frozenset({"", "localhost"})  # as WSGI servers name the other end of a Unix socket; waitress: localhost


@dataclass(frozen=True, slots=True)
class WebRequest:
    """The parts of a request that keys, costs and exemptions can use.

    headers: by name in lower case; repeated headers are joined by commas.
    peer: the address at the other end of the connection, None for a Unix socket.
    raw: the framework's own request, the ASGI scope or the WSGI environ.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    peer: str | None
    raw: Any


def of_scope(scope: Mapping[str, Any], raw: Any = None) -> WebRequest:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    client = scope.get("client")
    peer = client[0] if client and client[0] else None
    return WebRequest(scope.get("method", "GET"), scope["path"], headers, peer, scope if raw is None else raw)


def of_environ(environ: Mapping[str, Any], raw: Any = None) -> WebRequest:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = environ[name]
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    with suppress(UnicodeError):  # WSGI gives bytes as latin-1 text
        path = path.encode("latin-1").decode()
    at = environ.get("REMOTE_ADDR", "")
    peer = None if at in UNIX else at
    return WebRequest(environ["REQUEST_METHOD"], path, headers, peer, environ if raw is None else raw)
