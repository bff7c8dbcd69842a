"""Decide whether a request is allowed: by its token, its Host header, and for changes its origin."""

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
SLOWER_S, SLOWEST_S = 0.05, 2.0  # the delay grows with each recent wrong token, up to a maximum
# At once; far fewer than MAX_OF_ADDRESS, because each holds a connection, and all clients of a proxy share an address.
MAX_SLOWED: Final = 16
# Keys of the scope: the name of the token, or the user name sent with a shared token; whether the caller may act.
WHO: Final = "notifier.who"
MAY_ACT: Final = "notifier.may_act"


class Guard:
    """Lets requests with a token through; /healthz and /readyz reveal nothing and need none.

    Without a token, and if not is_open, the Host header must name this host: another site could point its name here.
    A request that changes something always needs a token, and must come from a page of this server or no browser.
    """

    def __init__(self, app: ASGIApp, token: Callable[[], str], *, is_open: bool) -> None:
        """token: called at each request, because its file may change."""
        self._app, self._token, self._is_open = app, token, is_open
        self._wrong, self._wrong_at = 0, 0.0  # wrong tokens; FORGET_S without one resets it
        self._slowed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        headers = dict(reversed(scope["headers"]))  # the first of each name counts
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
        """Delay the answer to a wrong token. Log the count at 1, 10, 100 and so on."""
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
    """The user name and the token in an Authorization header: a bearer token, or the password of any user name."""
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
    """Whether a page of this server sent a request, or no browser did: every browser names the origin of a POST."""
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
