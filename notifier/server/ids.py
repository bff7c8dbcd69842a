"""Ids in the paths of the API: each is one part of the path, percent-encoded, whatever stands in it."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

API: Final = "/api/"


class _Id(Convertor[str]):
    """`{name:id}` of a route. What is no UTF-8 stays as lone surrogates, which are in no id."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="surrogateescape")


register_url_convertor("id", _Id())


def raw_paths(app: ASGIApp) -> ASGIApp:
    """The application, whose routes of the API see paths as they were sent.

    A server decodes a path before it is routed: then the user `a/history` cannot be told from the history of `a`.
    """

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(API):
            scope["path"] = scope["raw_path"].decode("latin-1")
        await app(scope, receive, send)

    return routed
