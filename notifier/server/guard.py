"""Decide who may ask: by the token, the name of the host, and for changes by the same origin."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from notifier.server.answers import problem
from notifier.server.tokens import caller, callers_of, is_this_host

OPEN: Final = frozenset({"/healthz", "/readyz"})
READING: Final = frozenset({"GET", "HEAD"})
FORGET_S: Final = 300.0
SLOWER_S, SLOWEST_S = 0.05, 2.0  # so much for each wrong token of late
# At once; far fewer than MAX_OF_ADDRESS, as who waits holds a connection, and all of a proxy's have one address.
MAX_SLOWED: Final = 16
# In the scope: the name of the token, or the one that was given with everybody's; whether its holder may act.
WHO: Final = "notifier.who"
MAY_ACT: Final = "notifier.may_act"


class Guard:
    """Lets through who has the token; /healthz and /readyz, which tell nothing, need none.

    Without a token the host must be named as this one: a page of somebody else could make its own name lead here.
    What changes something needs the token always, and must come from a page of this server or from no browser.
    """

    def __init__(self, app: ASGIApp, token: Callable[[], str], *, is_open: bool) -> None:
        """token: is asked at each request, because its file may change."""
        self._app, self._token, self._is_open = app, token, is_open
        self._wrong, self._wrong_at = 0, 0.0  # tokens in a row of minutes
        self._slowed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        headers = dict(reversed(scope["headers"]))  # the first of each
        known = callers_of(self._token())
        who, given = _given(headers.get(b"authorization", b""))
        asks = caller(known, given)
        if known and asks is None:
            if given:
                await self._slow_down()
            refused = problem(401, "Unauthorized", "give the token of NOTIFIER_SERVER_TOKEN")
            refused.headers["WWW-Authenticate"] = 'Basic realm="push-throttle", charset="UTF-8"'
            return await refused(scope, receive, send)
        if not (known or self._is_open or is_this_host(_name(headers.get(b"host", b"")))):
            return await problem(421, "Misdirected", "without a token, ask localhost")(scope, receive, send)
        if scope["method"] not in READING:
            why = ""
            if asks is None:
                why = "what changes something needs a token: start the server with NOTIFIER_SERVER_TOKEN"
            elif not asks.may_act:
                why = f"the token of {asks.name} may look and not act"
            elif not _is_same_origin(headers):
                why = "a page of another origin asks for this"
            if why:
                return await problem(403, "Forbidden", why)(scope, receive, send)
        scope[WHO], scope[MAY_ACT] = asks.name or who if asks else who, asks is not None and asks.may_act
        return await self._app(scope, receive, send)

    async def _slow_down(self) -> None:
        """Let who tries tokens wait, and log how many were tried: one, ten, a hundred and so on."""
        now = time.monotonic()
        if now - self._wrong_at > FORGET_S:
            self._wrong = 0
        self._wrong, self._wrong_at = self._wrong + 1, now
        if str(self._wrong).strip("0") == "1":
            structlog.get_logger("notifier.server").warning("wrong_tokens", count=self._wrong)
        if self._slowed < MAX_SLOWED:
            self._slowed += 1
            try:
                await asyncio.sleep(min(SLOWEST_S, SLOWER_S * self._wrong))
            finally:
                self._slowed -= 1


def _given(authorization: bytes) -> tuple[str, bytes]:
    """The name and the token in this header: a bearer token, or the password of whichever user."""
    kind, _, value = authorization.partition(b" ")
    if kind.lower() == b"bearer":
        return "", value.strip()
    if kind.lower() != b"basic":
        return "", b""
    try:
        name, _, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except binascii.Error:
        return "", b""
    return name.decode(errors="replace"), password


def _is_same_origin(headers: Mapping[bytes, Any]) -> bool:
    """Whether a page of this server asks, or what is no browser: each browser names the origin of a POST."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None and site != b"same-origin":
        return False
    if origin is None:
        return True
    try:
        asked = urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return False
    return bool(asked) and asked.lower() == headers.get(b"host", b"").decode("latin-1").lower()


def _name(header: bytes) -> str:
    name = header.decode("latin-1")
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
