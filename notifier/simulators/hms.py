"""A server that speaks Huawei's push API, v1 and v2, and its token endpoint over HTTPS, as strictly as they do."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from notifier.notification.json_values import fields_of
from notifier.simulators.faults import HMS_TOKEN_ENDPOINT
from notifier.simulators.oauth import OauthSimulator
from notifier.simulators.wire import Message, Reply, part

SUCCESS: Final = "80000000"
BODY_BYTES: Final = 4096  # without the tokens
MAX_TOKENS: Final = 1000
MAX_TTL_S: Final = 1_296_000
TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{32,4096}")
TTL: Final = re.compile(r"([0-9]{1,9})s")
MESSAGE: Final = frozenset({"android", "apns", "condition", "data", "notification", "token", "topic", "webpush"})
ANDROID: Final[Mapping[str, type]] = {
    **dict.fromkeys(("bi_tag", "category", "data", "receipt_id", "ttl", "urgency"), str),
    **dict.fromkeys(("collapse_key", "fast_app_target", "target_user_type"), int),
    "notification": dict,
}
NEEDED: Final = ("title", "body", "click_action")


@dataclass(kw_only=True, eq=False, repr=False)
class HmsSimulator(OauthSimulator):
    """Huawei's push API and its token endpoint on one free port of 127.0.0.1.

    apps: by app id, the app's secret. projects: by project id, which stands in the path of v2, the app's id.
    scripts: by device token; those under ``/oauth2/v3/token`` are for the token endpoint.
    token_lifetime_s: of new access tokens, in seconds; may be changed.
    """

    platform = "hms"
    token_endpoint = HMS_TOKEN_ENDPOINT
    token_prefix = "CgB6"  # noqa: S105 - as Huawei's begin

    apps: Mapping[str, str]
    projects: Mapping[str, str] = field(default_factory=dict)

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.post("/{version:v1|v2}/{whose}/messages:send", self._serve_message)]

    def _grant(self, form: Mapping[str, str]) -> tuple[str, str]:
        app = form.get("client_id", "")
        known = app in self.apps and form.get("client_secret") == self.apps[app]
        return app, "" if known and form.get("grant_type") == "client_credentials" else "invalid client"

    def _error(self, reason: str) -> dict[str, Any]:
        return {"error": 1101, "sub_error": 20001, "error_description": reason or "invalid client"}

    def _read_message(self, request: web.Request, body: bytes) -> Message:
        refusal = self._refusal(request)
        asked = {} if refusal else fields_of(body)
        message, known = part(asked, "message", kind=dict), asked.keys() <= {"message", "validate_only"}
        takes = request.content_type == "application/json" and known and message is not None
        code = _why_not(message, body) if takes else "80100003"
        reply = refusal or (Reply(400, code) if code else Reply())
        tokens = part(message, "token", kind=list)
        token = tokens[0] if tokens and isinstance(tokens[0], str) else ""
        ttl = TTL.fullmatch(part(message, "android", "ttl", kind=str) or "")
        fields = {
            "collapse_id": part(message, "android", "notification", "tag", kind=str),
            "data": fields_of(part(message, "data", kind=str) or ""),
            "title": part(message, "android", "notification", "title", kind=str),
            "ttl_us": None if ttl is None else int(ttl[1]) * 1_000_000,
            "app": request.match_info["whose"],
        }
        return Message(token, reply, f"{time.time_ns() // 1000}{secrets.randbelow(10**6):06d}", fields)

    def _respond(self, reply: Reply, request_id: str) -> web.Response:
        code = SUCCESS if reply.status == HTTPStatus.OK and not reply.reason else reply.reason
        said = {"code": code, "msg": "Success" if code == SUCCESS else "see the code", "requestId": request_id}
        return web.json_response(said if code else {}, status=reply.status, headers=reply.all_headers())

    def _refusal(self, request: web.Request) -> Reply | None:
        until, app = self._holder(request)
        if not app:
            return Reply(401, "80200001")
        if until <= time.monotonic():
            return Reply(401, "80200003")
        whose = request.match_info["whose"]
        owner = self.projects.get(whose) if request.match_info["version"] == "v2" else whose
        return None if owner == app else Reply(400, "80300002")


def _why_not(message: dict[str, Any], body: bytes) -> str:
    """Return Huawei's code for the first mistake in a message; '' if there is none."""
    tokens, android, data = message.get("token"), message.get("android", {}), message.get("data", "")
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= MAX_TOKENS:
        return "80300010"
    if not all(isinstance(token, str) and TOKEN.fullmatch(token) for token in tokens):
        return "80300007"
    if not message.keys() <= MESSAGE or not isinstance(data, str) or not isinstance(android, dict):
        return "80100003"
    if len(body) - sum(map(len, tokens)) > BODY_BYTES:
        return "80300008"
    return _why_not_android(android, has_data=bool(data))


def _why_not_android(android: dict[str, Any], *, has_data: bool) -> str:
    if any(name not in ANDROID or type(value) is not ANDROID[name] for name, value in android.items()):
        return "80100003"
    ttl = TTL.fullmatch(android.get("ttl", "86400s"))
    if ttl is None or not 1 <= int(ttl[1]) <= MAX_TTL_S:
        return "80100004"
    if android.get("urgency", "HIGH") not in {"HIGH", "NORMAL"} or not -1 <= android.get("collapse_key", -1) <= 100:  # noqa: PLR2004
        return "80100001"
    shown = android.get("notification")
    if shown is None:
        return "" if has_data else "80100003"
    whole = all(shown.get(name) for name in NEEDED) and isinstance(part(shown, "click_action", "type", kind=int), int)
    return "" if whole else "80100003"
