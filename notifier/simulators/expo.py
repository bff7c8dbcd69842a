"""A server that speaks Expo's push API over HTTPS, as strictly as the real one: tickets, and receipts for them."""

from __future__ import annotations

import gzip
import json
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from notifier.simulators.https import HttpsSimulator
from notifier.simulators.orders import ExpoOrders
from notifier.simulators.wire import Message, Reply, part

SEND: Final = "/--/api/v2/push/send"
RECEIPTS: Final = "/--/api/v2/push/getReceipts"
MAX_MESSAGES: Final = 100
MAX_RECEIPTS: Final = 1000
MAX_BYTES: Final = 4096
PROJECT: Final = "@simulated/app"
TOKEN: Final = re.compile(r"Expo(?:nent)?PushToken\[[A-Za-z0-9_-]{10,200}\]")
FIELDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("to", "title", "body", "subtitle", "sound", "channelId", "categoryId"), str),
    **dict.fromkeys(("icon", "interruptionLevel"), str),
    **dict.fromkeys(("data", "richContent"), dict),
    **dict.fromkeys(("ttl", "expiration", "badge"), int),
    **dict.fromkeys(("mutableContent", "_contentAvailable"), bool),
    "priority": str,
}
# Errors of one message, which stand in its ticket. Any other error refuses the whole request.
OF_A_TICKET: Final = frozenset(
    {"DeviceNotRegistered", "MessageTooBig", "MessageRateExceeded", "MismatchSenderId", "InvalidCredentials"}
)


@dataclass(kw_only=True, eq=False, repr=False)
class ExpoSimulator(HttpsSimulator):
    """Expo's push API on a free port of 127.0.0.1.

    access_token: every request needs it; '' takes none. projects: by device token, its project, if that is not PROJECT:
    a request with tokens of two projects is refused. rate_limit: the most messages in a second; Expo allows a project
    600, 0 is no limit; may be changed. receipts: by device token, the error in its receipts; may be changed.
    """

    platform = "expo"
    orders = ExpoOrders

    access_token: str = ""
    projects: Mapping[str, str] = field(default_factory=dict)
    rate_limit: float = 600
    receipts: dict[str, str] = field(default_factory=dict)
    requests: int = field(default=0, init=False)
    _taken: deque[float] = field(default_factory=deque, init=False)  # when each message came, on the monotonic clock
    _tickets: dict[str, str] = field(default_factory=dict, init=False)  # receipt id -> device token

    def routes(self) -> list[web.RouteDef]:
        return [web.post(SEND, self._serve_send), web.post(RECEIPTS, self._serve_receipts)]

    def expire_tokens(self) -> None:
        self.access_token = secrets.token_urlsafe(16)

    async def _serve_send(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        self.requests += 1
        at_us = time.time_ns() // 1000
        asked = _parsed(request, body)
        given = asked if isinstance(asked, list) else [asked]
        refusal = self._refusal(request) or self._why_not(request, given)
        messages = [_message(each) for each in given if isinstance(each, dict)]
        replies = [refusal or self.reply_to(message) for message in messages]
        whole = refusal or next(filter(_is_of_request, replies), None)
        for message, reply in zip(messages, replies, strict=True):
            self.record(at_us, message, whole or reply)
            if (whole or reply).logged_status == HTTPStatus.OK:
                self._tickets[message.id] = message.token
        delay_ms = max((reply.delay_ms for reply in replies), default=0)

        def respond() -> web.Response:
            if whole is not None and whole.status != HTTPStatus.OK:
                return _errors(whole)
            return web.json_response({"data": [_ticket(r, m.id) for m, r in zip(messages, replies, strict=True)]})

        return await self._answer(request, whole or Reply(), self.serve(delay_ms), respond)

    async def _serve_receipts(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        if refusal := self._refusal(request):
            return _errors(refusal)
        ids = _parsed(request, body)
        ids = ids.get("ids") if isinstance(ids, dict) else None
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            return _errors(Reply(400, "VALIDATION_ERROR"))
        if len(ids) > MAX_RECEIPTS:
            return _errors(Reply(400, "PUSH_TOO_MANY_RECEIPTS"))
        known = {each: self.receipts.get(self._tickets[each], "") for each in ids if each in self._tickets}
        return web.json_response(
            {"data": {each: _ticket(Reply(400 if e else 200, e), "") for each, e in known.items()}}
        )

    def _refusal(self, request: web.Request) -> Reply | None:
        if request.headers.get("Authorization") != (f"Bearer {self.access_token}" if self.access_token else None):
            return Reply(401, "UNAUTHORIZED")
        return None

    def _why_not(self, request: web.Request, given: Sequence[Any]) -> Reply | None:
        """Return the refusal of all messages of a request, if there is one."""
        if request.content_type != "application/json" or not all(map(_is_valid, given)) or not given:
            return Reply(400, "VALIDATION_ERROR")
        if len(given) > MAX_MESSAGES:
            return Reply(400, "PUSH_TOO_MANY_NOTIFICATIONS")
        if len({self.projects.get(content["to"], PROJECT) for content in given}) > 1:
            return Reply(400, "PUSH_TOO_MANY_EXPERIENCE_IDS")
        return None if self._admits(len(given)) else Reply(429, "TOO_MANY_REQUESTS")

    def _admits(self, count: int) -> bool:
        now = time.monotonic()
        while self._taken and self._taken[0] <= now - 1:
            self._taken.popleft()
        if 0 < self.rate_limit < len(self._taken) + count:
            return False
        self._taken.extend([now] * count)
        return True


def _parsed(request: web.Request, body: bytes) -> Any:
    try:
        return json.loads(gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body)
    except (ValueError, OSError, EOFError):
        return None


def _is_valid(content: object) -> bool:
    if not isinstance(content, dict) or not TOKEN.fullmatch(str(content.get("to"))):
        return False
    typed = all(name in FIELDS and type(value) is FIELDS[name] for name, value in content.items())
    return typed and content.get("priority", "default") in {"default", "normal", "high"}


def _message(content: Mapping[str, Any]) -> Message:
    token, ttl = str(content.get("to", "")), part(content, "ttl", kind=int)
    size = len(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")) - len(token)
    fields = {
        "data": part(content, "data", kind=dict) or {},
        "title": part(content, "title", kind=str),
        "ttl_us": None if ttl is None else ttl * 1_000_000,
        "app": PROJECT,
    }
    reply = Reply(400, "MessageTooBig") if size > MAX_BYTES else Reply()
    return Message(token, reply, secrets.token_hex(16), fields)


def _is_of_request(reply: Reply) -> bool:
    """Whether a reply answers the whole request, and not one message in its ticket."""
    return reply.drop or reply.silent or (reply.status != HTTPStatus.OK and reply.reason not in OF_A_TICKET)


def _ticket(reply: Reply, ticket_id: str) -> dict[str, Any]:
    if reply.status == HTTPStatus.OK:
        return {"status": "ok", **({"id": ticket_id} if ticket_id else {})}
    # As long as Expo's own text for a dead token.
    said = '"ExponentPushToken[xxxxxxxxxxxxxxxxxxxxxx]" is not a registered push notification recipient: see details'
    return {"status": "error", "message": said, "details": {"error": reply.reason}}


def _errors(reply: Reply) -> web.Response:
    error = {"code": reply.reason or "API_ERROR", "message": "see the code"}
    return web.json_response({"errors": [error]}, status=reply.status, headers=reply.all_headers())
