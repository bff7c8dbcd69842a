"""Access tokens by OAuth 2.0, fetched over the pool that sends the messages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import structlog

from notifier.notification.json_values import fields_of
from notifier.providers.answers import MINUTE_US, word
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.backoff import LONGEST_BACKOFF_S, Backoff
from notifier.providers.transport.http1 import Pool, Response

FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
# OAuth's words, and the statuses below 500, for a passing error: the account is not at fault.
PASSING_WORDS: Final = frozenset({"internal_failure", "server_error", "temporarily_unavailable"})
PASSING: Final = frozenset({408, 429})
OK: Final = range(200, 300)
SERVER_ERROR: Final = 500
MAX_TOKEN_CHARACTERS: Final = 8_192
MAX_LIFETIME_S: Final = 86_400
TOKEN_LIFETIME_S: Final = 300.0  # assumed if the token endpoint names none
RENEW_BEFORE_S: Final = 300.0  # renewed this long before its end; a short-lived one at four fifths of its life
SPARE_S: Final = 10.0  # unused from this long before its end; a short-lived one at nine tenths of its life


class AccessTokens:
    """An access token: one fetch at a time, renewed before it ends.

    name: of the platform, for logs. request: makes the form that a fetch posts. timeout_s: of a whole fetch.
    """

    def __init__(self, name: str, token_uri: str, request: Callable[[], bytes], pool: Pool, timeout_s: float) -> None:
        self._name = name
        self._request = request
        self._uri = token_uri
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(token_uri))
        self._pool = pool
        self._timeout_s = timeout_s
        self._token = ""
        self._usable_until = self._renew_at = -math.inf  # on the loop's clock
        self._proven = False  # the platform has accepted this token
        self._doubted = False  # the platform's last word on this token was a refusal
        self._messages_own = False  # the platform refused it for one message, and accepted it for the next
        self._refusal = Answer(Outcome.UNSENT, reason="Closed")  # the answer of sends while there is no token
        self._backoff = Backoff()
        self._fetching: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(__name__)
        pool.ends_with_it.append(self.close)

    async def post(
        self,
        url: str,
        body: bytes,
        read: Callable[[int, Mapping[str, str], bytes], Answer],
        *,
        origin: str,
        send_by: float,
        content_type: str = "application/json",
    ) -> Answer:
        """Post a message with the token, and note whether the platform accepts the token.

        read: makes the answer from the status, headers and body; UNSENT if the token was refused.
        """
        token = await self._usable(origin, send_by)
        if isinstance(token, Answer):
            return token
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
        response = await self._pool.post(url, body, headers, origin=origin, send_by=send_by)
        if isinstance(response, Answer):
            return response
        answer = read(response.status, response.headers, response.body)
        if answer.outcome is Outcome.UNSENT:
            return self._refuse(token, answer)
        if token == self._token:
            self._proven, self._doubted, self._messages_own = True, False, self._messages_own or self._doubted
        return answer

    async def _usable(self, origin: str, until: float) -> str | Answer:
        """Return a usable token, or the answer of the send if there is none by `until`, a time of the loop's clock.

        No token is fetched while nothing can be sent to `origin`.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now < self._renew_at:
            return self._token
        if unsent := self._pool.unsent(origin, until):
            return unsent
        if self._fetching is None and not self._backoff.left_us(now):
            self._fetching = loop.create_task(self._fetch())
        if now < self._usable_until:
            return self._token
        if self._fetching is not None:
            # Not wait_for: it would cancel the fetch that other sends wait for.
            await asyncio.wait({self._fetching}, timeout=max(until - now, 0))
        now = loop.time()
        if now >= until:
            return Answer(Outcome.UNSENT, reason="TooLate")
        if now < self._usable_until:
            return self._token
        wait_us = self._backoff.left_us(now) or None
        return replace(self._refusal, retry_after_us=wait_us)

    def _refuse(self, token: str, answer: Answer) -> Answer:
        """Note that the platform refused a token as not valid. Return the answer of the send.

        One refusal may concern one message, or one broken server. If the next send is refused too, a new token is
        fetched. If the platform never accepted this token, the account is at fault: fetches wait, as none would help.
        """
        if token != self._token:
            return answer
        is_fault = self._messages_own or not self._proven
        if not self._doubted:
            self._doubted = True
        else:
            self._token, is_fault = "", not self._proven
            self._usable_until = self._renew_at = -math.inf
            if is_fault:
                self._fault(f"{self._name}: {answer.reason}")
        return Answer(Outcome.FAULT, answer.status, answer.reason, MINUTE_US) if is_fault else answer

    def close(self) -> None:
        self._refusal = Answer(Outcome.UNSENT, reason="Closed")
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(self) -> None:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._pool.post(
                    self._uri, self._request(), FORM, origin=self._origin, send_by=began + self._timeout_s
                )
        except TimeoutError:
            self._failed(began, "TokenEndpoint: Timeout")
        except Exception as error:  # noqa: BLE001 - the signer may raise anything, and its text may quote the key
            self._failed(began, f"TokenEndpoint: {type(error).__name__}")
        else:
            if isinstance(response, Answer):
                self._failed(began, f"TokenEndpoint: {response.reason}", response.seen)
            else:
                self._read(response, began)
        finally:
            self._fetching = None

    def _read(self, response: Response, began: float) -> None:
        content = fields_of(response.body)
        error = word(content.get("error"))
        if response.status in PASSING or response.status >= SERVER_ERROR or error in PASSING_WORDS:
            self._failed(began, "TokenEndpointUnavailable")
        elif response.status not in OK:
            self._fault(f"TokenEndpoint: {error or 'refused'}")
        elif not isinstance(token := content.get("access_token"), str) or not token:
            self._failed(began, "TokenEndpoint: NoAccessToken")
        elif len(token) > MAX_TOKEN_CHARACTERS or not is_plain(token):  # a line break in it would begin a header
            self._fault("TokenEndpoint: UnusableAccessToken")
        else:
            self._take(token, _lifetime_s(content.get("expires_in")), began)

    def _take(self, token: str, lifetime_s: float, began: float) -> None:
        # The lifetime counts from before the request: it may be taken too short, never too long.
        self._token, self._proven, self._doubted, self._messages_own = token, False, False, False
        self._renew_at = began + lifetime_s - min(RENEW_BEFORE_S, lifetime_s / 5)
        self._usable_until = began + lifetime_s - min(SPARE_S, lifetime_s / 10)
        now = asyncio.get_running_loop().time()
        if now >= self._usable_until:
            self._failed(began, "TokenEndpoint: ExpiredAccessToken")
        elif self._backoff.worked(now):
            self._log.info(f"{self._name}_token_fetched")

    def _failed(self, began: float, reason: str, seen: str = "") -> None:
        self._refusal = Answer(Outcome.UNSENT, reason=reason, seen=seen)
        if self._backoff.failed(began, asyncio.get_running_loop().time()):
            self._log.warning(f"{self._name}_token_not_fetched", reason=seen or reason)

    def _fault(self, reason: str) -> None:
        if self._refusal.outcome is not Outcome.FAULT or not self._backoff.failing:
            self._log.error(f"{self._name}_account_refused", reason=reason, help="check its key and its role")
        self._refusal = Answer(Outcome.FAULT, reason=reason)
        self._backoff.hold(asyncio.get_running_loop().time() + LONGEST_BACKOFF_S)


def is_plain(text: str) -> bool:
    """Whether it is printable ASCII without a blank, as headers and addresses must be."""
    return text.isascii() and text.isprintable() and " " not in text


def _lifetime_s(value: object) -> float:
    """Read the lifetime of a token in seconds, within limits."""
    return float(min(max(value, 1), MAX_LIFETIME_S)) if type(value) is int else TOKEN_LIFETIME_S
