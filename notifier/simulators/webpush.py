"""A push service for invented browsers, over HTTPS: as strict as the strictest real one. It decrypts every message."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from aiohttp import web

from notifier.simulators.checks.webpush import DIGITS, Checks, is_key
from notifier.simulators.https import HttpsSimulator
from notifier.simulators.webpush_browser import PATH, browser, subscription
from notifier.simulators.wire import Message, Reply, part

NAME: Final = "{name:[A-Za-z0-9_-]{1,128}}"


@dataclass(kw_only=True, eq=False, repr=False)
class WebPushSimulator(HttpsSimulator):
    """Every name is a browser that has subscribed with `public_key`, unless `subscribe` gave it another key.

    Scripts and the wire log call a browser by its name, the last part of its endpoint. An accepted message is answered
    201 and logged as 200, the status by which a `Reply` accepts.
    public_key: the sender's, base64url. clock: seconds since 1970, for the checks of senders' tokens alone.
    """

    platform = "webpush"

    public_key: str
    clock: Callable[[], float] = time.time
    _senders: dict[str, str] = field(default_factory=dict, init=False)  # by browser, if its sender has another key

    def __post_init__(self) -> None:
        super().__post_init__()
        self._checks = Checks(self.clock)

    def routes(self) -> list[web.RouteDef]:
        return [web.post(PATH + NAME, self._serve_message), web.post(f"/subscribe/{NAME}", self._serve_subscribe)]

    def subscribe(self, name: str, public_key: str = "") -> str:
        """Return a browser's subscription as JSON. public_key: the sender's, in place of the simulator's."""
        if public_key:
            self._senders[name] = public_key
        return subscription(self.url, name)

    def expire_tokens(self) -> None:
        self._checks.expire()

    async def _serve_subscribe(self, request: web.Request) -> web.StreamResponse:
        key = (await request.text()).strip()
        if key and not is_key(key):
            return web.Response(status=400, text="give the applicationServerKey in base64url, or nothing\n")
        text = self.subscribe(request.match_info["name"], key)
        return web.Response(status=201, text=text, content_type="application/json")

    def _read_message(self, request: web.Request, body: bytes) -> Message:
        name = request.match_info["name"]
        sender, ttl = self._senders.get(name, self.public_key), request.headers.get("TTL", "")
        reply, message = self._checks.judge(self.url, sender, browser(name), request.headers, body)
        shown = message.get("notification") if "web_push" in message else message  # the browser shows it, or the page
        fields = {
            "collapse_id": part(shown, "tag", kind=str) or part(message, "options", "tag", kind=str),
            "data": part(shown, "data", kind=dict) or {},
            "title": part(shown, "title", kind=str),
            "ttl_us": int(ttl) * 1_000_000 if DIGITS.fullmatch(ttl) else None,
            "app": sender if reply.status == HTTPStatus.OK else None,
        }
        return Message(name, reply, secrets.token_urlsafe(16), fields)

    def _respond(self, reply: Reply, message_id: str) -> web.Response:
        headers = reply.all_headers()
        if reply.status == HTTPStatus.OK:
            return web.Response(status=201, headers={"Location": f"{self.url}/message/{message_id}", **headers})
        return web.json_response({"reason": reply.reason}, status=reply.status, headers=headers)
