"""The common part of simulators whose clients fetch an access token first."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

from aiohttp import web

from notifier.simulators.https import HttpsSimulator
from notifier.simulators.orders import OauthOrders
from notifier.simulators.wire import Reply


@dataclass(kw_only=True, eq=False, repr=False)
class OauthSimulator(HttpsSimulator):
    """A service and its token endpoint. The scripts name the endpoint by its path.

    token_lifetime_s: of new access tokens, in seconds; may be changed. token_fetches: how many so far.
    """

    orders = OauthOrders
    token_endpoint: ClassVar[str]
    token_prefix: ClassVar[str]

    token_lifetime_s: int = 3600
    token_fetches: int = field(default=0, init=False)
    # By access token: its end on the monotonic clock, and its owner.
    _access: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)

    def routes(self) -> list[web.RouteDef]:
        return [web.post(self.token_endpoint, self._serve_token)]

    def expire_tokens(self) -> None:
        self._access.clear()

    @abstractmethod
    def _grant(self, form: Mapping[str, str]) -> tuple[str, str]:
        """Return the owner of the token that the form asks for, and why it is refused, or ''."""

    @abstractmethod
    def _error(self, reason: str) -> dict[str, Any]:
        """Return the body of a refusal."""

    def _holder(self, request: web.Request) -> tuple[float, str]:
        """Return when the request's access token ends, on the monotonic clock, and its owner; '' without one."""
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        return self._access.get(bearer if scheme == "Bearer" else "", (0.0, ""))

    async def _serve_token(self, request: web.Request) -> web.StreamResponse:
        form = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        self.token_fetches += 1
        reply = self.playback.next(self.token_endpoint) or Reply()
        return await self._answer(request, reply, reply.delay_ms / 1000, lambda: self._respond_to(form, reply))

    def _respond_to(self, form: Mapping[str, str], reply: Reply) -> web.Response:
        whose, refusal = self._grant(form)
        if reply.status == HTTPStatus.OK and not reply.reason:
            if not refusal:
                return self._hand_out(whose)
            reply = Reply(400, refusal)
        return web.json_response(self._error(reply.reason), status=reply.status, headers=reply.all_headers())

    def _hand_out(self, whose: str) -> web.Response:
        token = self.token_prefix + secrets.token_urlsafe(48)
        self._access[token] = time.monotonic() + self.token_lifetime_s, whose
        return web.json_response({"access_token": token, "expires_in": self.token_lifetime_s, "token_type": "Bearer"})
