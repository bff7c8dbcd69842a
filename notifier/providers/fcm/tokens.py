"""Google's access token: from a service account, whose assertion google-auth signs, fetched over FCM's own pool."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import structlog
from google.auth import jwt as google_jwt
from google.oauth2 import service_account as google_accounts

from notifier.errors import SettingsError
from notifier.providers.answers import MINUTE_US, parse, word
from notifier.providers.contract import Answer, Outcome
from notifier.providers.transport.backoff import SECOND_US, Backoff
from notifier.providers.transport.http1 import Pool, Response

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
ACCOUNT_FIELDS: Final = ("client_email", "private_key", "project_id", "token_uri")
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AUDIENCE: Final = "https://oauth2.googleapis.com/token"  # Google's name for itself, whatever address it is asked at
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
ASSERTION_LIFETIME_S: Final = 3600
# OAuth's words, and the statuses below 500, that say nothing of the account.
PASSING_WORDS: Final = frozenset({"internal_failure", "server_error", "temporarily_unavailable"})
PASSING: Final = frozenset({408, 429})
OK: Final = range(200, 300)
SERVER_ERROR: Final = 500
PROJECT: Final = re.compile(r"[A-Za-z0-9.:_-]{1,100}")
MAX_TOKEN_CHARACTERS: Final = 8_192
MAX_LIFETIME_S: Final = 86_400
TOKEN_LIFETIME_S: Final = 300.0  # assumed where the token endpoint names none
RENEW_BEFORE_S: Final = 300.0  # renewed that long before its end, or at four fifths of a short life
SPARE_S: Final = 10.0  # no longer used that long before its end, or at nine tenths of a short life


class AccessTokens:
    """Google's access token: one fetch at a time, renewed before it ends. timeout_s: of a fetch as a whole."""

    def __init__(self, account: google_accounts.Credentials, token_uri: str, pool: Pool, timeout_s: float) -> None:
        self._account = account
        self._uri = token_uri
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(token_uri))
        self._pool = pool
        self._timeout_s = timeout_s
        self._token = ""
        self._usable_until = self._renew_at = -math.inf  # on the loop's clock
        self._proven = False  # FCM has accepted this very token
        self._refusal = Answer(Outcome.UNSENT, reason="Closed")  # what sends answer while there is none
        self._backoff = Backoff()
        self._fetching: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(__name__)

    def ready(self) -> str:
        """Return the token if it is usable and need not be renewed yet; else nothing, and `get` is to be asked."""
        return self._token if asyncio.get_running_loop().time() < self._renew_at else ""

    async def get(self, until: float) -> str | Answer:
        """Return a usable token, waiting until that moment of the loop's clock; else what to answer."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._renew_at and self._fetching is None and not self._backoff.left_us(now):
            self._fetching = loop.create_task(self._fetch())
        if now < self._usable_until:
            return self._token
        if self._fetching is not None:
            # Not wait_for: it would cancel the fetch that the others wait for.
            await asyncio.wait({self._fetching}, timeout=max(until - now, 0))
        now = loop.time()
        if now >= until:
            return Answer(Outcome.UNSENT, reason="TooLate")
        if now < self._usable_until:
            return self._token
        wait_us = self._backoff.left_us(now) or None
        return Answer(self._refusal.outcome, reason=self._refusal.reason, retry_after_us=wait_us)

    def accepted(self, token: str) -> None:
        """Note that FCM took a request with this token."""
        self._proven = self._proven or token == self._token

    def refused(self, token: str, answer: Answer) -> Answer:
        """Note that FCM refused a token as not valid; return what the send that met it is to answer.

        The next send fetches a new one. One that FCM refuses right after its fetch is a fault of the account:
        fetching would not mend it, so it waits.
        """
        if token != self._token:
            return answer
        proven, self._proven, self._token = self._proven, False, ""
        self._usable_until = self._renew_at = -math.inf
        if proven:
            return answer
        self._fault(f"FCM: {answer.reason}")
        return Answer(Outcome.FAULT, answer.status, answer.reason, MINUTE_US)

    def close(self) -> None:
        """End a fetch that is under way."""
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
        except Exception as error:  # noqa: BLE001 - whatever the signer raises, its text may quote the key
            self._failed(began, f"TokenEndpoint: {type(error).__name__}")
        else:
            if isinstance(response, Answer):
                self._failed(began, f"TokenEndpoint: {response.reason}")
            else:
                self._read(response, began)
        finally:
            self._fetching = None

    def _request(self) -> bytes:
        now = int(time.time())
        claims = {
            "iss": self._account.service_account_email,
            "scope": SCOPE,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + ASSERTION_LIFETIME_S,
        }
        assertion = google_jwt.encode(self._account.signer, claims)  # type: ignore[no-untyped-call]
        return urlencode({"grant_type": GRANT, "assertion": assertion}).encode()

    def _read(self, response: Response, began: float) -> None:
        content = parse(response.body)
        error = word(content.get("error"))
        if response.status in PASSING or response.status >= SERVER_ERROR or error in PASSING_WORDS:
            self._failed(began, "TokenEndpointUnavailable")
        elif response.status not in OK:
            self._fault(f"TokenEndpoint: {error or 'refused'}")
        elif not isinstance(token := content.get("access_token"), str) or not token:
            self._failed(began, "TokenEndpoint: NoAccessToken")
        elif not _is_usable(token):
            self._fault("TokenEndpoint: UnusableAccessToken")
        else:
            self._take(token, _lifetime_s(content.get("expires_in")), began)

    def _take(self, token: str, lifetime_s: float, began: float) -> None:
        # The life counts from before the request, so that it can only be taken for too short.
        self._token, self._proven = token, False
        self._renew_at = began + lifetime_s - min(RENEW_BEFORE_S, lifetime_s / 5)
        self._usable_until = began + lifetime_s - min(SPARE_S, lifetime_s / 10)
        if self._backoff.worked(asyncio.get_running_loop().time()):
            self._log.info("fcm_token_fetched")

    def _failed(self, began: float, reason: str) -> None:
        self._refusal = Answer(Outcome.UNSENT, reason=reason)
        if self._backoff.failed(began, asyncio.get_running_loop().time()):
            self._log.warning("fcm_token_not_fetched", reason=reason)

    def _fault(self, reason: str) -> None:
        if self._refusal.outcome is not Outcome.FAULT or not self._backoff.failing:
            self._log.error("fcm_account_refused", reason=reason, help="check its key and its role")
        self._refusal = Answer(Outcome.FAULT, reason=reason)
        self._backoff.hold(asyncio.get_running_loop().time() + MINUTE_US / SECOND_US)


def read_account(account: Mapping[str, Any]) -> google_accounts.Credentials:
    """The credentials of a service account; raises SettingsError, which never shows the key."""
    if not isinstance(account, Mapping):
        raise SettingsError("the FCM service account must be a JSON object, as downloaded from Google")
    for name in ACCOUNT_FIELDS:
        if not isinstance(account.get(name), str) or not account[name]:
            raise SettingsError(f"the FCM service account has no text in {name!r}: is it the file from Google?")
    if not PROJECT.fullmatch(account["project_id"]):  # it is a part of the address that messages are sent to
        raise SettingsError("the FCM service account's project_id is not an id such as my-project-12345")
    check_https("service account's token_uri", account["token_uri"])
    make: Callable[..., google_accounts.Credentials] = google_accounts.Credentials.from_service_account_info
    try:
        return make(dict(account), scopes=[SCOPE])
    except Exception:  # noqa: BLE001 - whatever the parser meets, its text may quote the key
        raise SettingsError("the FCM service account's private_key is no usable RSA key in PEM form") from None


def check_https(name: str, url: str) -> None:
    """Raise SettingsError unless the URL is https with a host."""
    # An access token or an assertion on an open line is anybody's.
    try:
        # urlsplit passes over line breaks, which would end the request's first line.
        usable = _is_plain(url) and urlsplit(url).scheme == "https" and bool(urlsplit(url).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(f"the FCM {name} {url!r} must be of the form https://host[:port]")


def _is_usable(token: str) -> bool:
    """Whether a header can carry it: one with a line break in it would be two headers."""
    return len(token) <= MAX_TOKEN_CHARACTERS and _is_plain(token)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _lifetime_s(value: object) -> float:
    """For how many seconds a token lives, within reason."""
    return float(min(max(value, 1), MAX_LIFETIME_S)) if type(value) is int else TOKEN_LIFETIME_S
