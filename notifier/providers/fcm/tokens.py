"""Google's access token: from a service account, by google-auth, fetched off the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import structlog
from google.auth import exceptions as google_errors
from google.auth.transport import requests as google_transport
from google.oauth2 import service_account as google_accounts

from notifier.errors import SettingsError
from notifier.providers.answers import MINUTE_US
from notifier.providers.backoff import SECOND_US, Backoff
from notifier.providers.contract import Answer, Outcome

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
ACCOUNT_FIELDS: Final = ("client_email", "private_key", "project_id", "token_uri")
TOKEN_LIFETIME_S: Final = 300.0  # assumed where the token endpoint names none
RENEW_BEFORE_S: Final = 300.0  # renewed that long before its end, or at four fifths of a short life
SPARE_S: Final = 10.0  # no longer used that long before its end, or at nine tenths of a short life


class AccessTokens:
    """Google's access token: fetched in a thread, one fetch at a time, renewed before it ends."""

    def __init__(self, credentials: google_accounts.Credentials, ca_file: Path | None, timeout_s: float) -> None:
        self._credentials = credentials
        self._verify: str | bool = True if ca_file is None else str(ca_file)
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
        """Stop waiting for a fetch; its thread ends by its own timeout."""
        self._refusal = Answer(Outcome.UNSENT, reason="Closed")
        if self._fetching is not None:
            self._fetching.cancel()

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            token, lifetime_s = await asyncio.to_thread(self._ask)
        except google_errors.RefreshError as error:
            if error.retryable:
                self._failed(began, "TokenEndpointUnavailable")
            else:
                self._fault(f"TokenEndpoint: {_oauth_error(error)}")
        except Exception as error:  # noqa: BLE001 - google-auth raises whatever an odd answer makes it trip over
            self._failed(began, f"TokenEndpoint: {type(error).__name__}")
        else:
            # The life counts from before the request, so that it can only be taken for too short.
            self._token, self._proven = token, False
            self._renew_at = began + lifetime_s - min(RENEW_BEFORE_S, lifetime_s / 5)
            self._usable_until = began + lifetime_s - min(SPARE_S, lifetime_s / 10)
            if self._backoff.worked(loop.time()):
                self._log.info("fcm_token_fetched")
        finally:
            self._fetching = None

    def _ask(self) -> tuple[str, float]:
        # A session a fetch: once an hour needs no kept connection.
        with requests.Session() as session:
            session.trust_env = False  # a REQUESTS_CA_BUNDLE would win over `verify`
            session.verify = self._verify
            self._credentials.refresh(_TokenRequest(session, self._timeout_s))  # type: ignore[no-untyped-call]
        token, expiry = str(self._credentials.token), self._credentials.expiry
        if expiry is None:
            return token, TOKEN_LIFETIME_S
        left: timedelta = expiry - datetime.now(UTC).replace(tzinfo=None)  # google-auth's are naive, in UTC
        return token, max(left.total_seconds(), 1.0)

    def _failed(self, began: float, reason: str) -> None:
        self._refusal = Answer(Outcome.UNSENT, reason=reason)
        if self._backoff.failed(began, asyncio.get_running_loop().time()):
            self._log.warning("fcm_token_not_fetched", reason=reason)

    def _fault(self, reason: str) -> None:
        if self._refusal.outcome is not Outcome.FAULT or not self._backoff.failing:
            self._log.error("fcm_account_refused", reason=reason, help="check its key and its role")
        self._refusal = Answer(Outcome.FAULT, reason=reason)
        self._backoff.hold(asyncio.get_running_loop().time() + MINUTE_US / SECOND_US)


class _TokenEndpointDownError(Exception):
    """The token endpoint answered a 408, 429 or 5xx."""


class _TokenRequest(google_transport.Request):
    """google-auth's HTTP with our timeout, and without its sleeping retries on a 408, 429 or 5xx."""

    def __init__(self, session: requests.Session, timeout_s: float) -> None:
        super().__init__(session)
        self._timeout_s = timeout_s

    def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = self._timeout_s
        response = super().__call__(url, *args, **kwargs)  # type: ignore[no-untyped-call]
        if response.status in {408, 429} or response.status >= 500:  # noqa: PLR2004
            raise _TokenEndpointDownError(response.status)
        return response


def read_account(account: Mapping[str, Any]) -> google_accounts.Credentials:
    """The credentials of a service account; raises SettingsError, which never shows the key."""
    if not isinstance(account, Mapping):
        raise SettingsError("the FCM service account must be a JSON object, as downloaded from Google")
    for name in ACCOUNT_FIELDS:
        if not isinstance(account.get(name), str) or not account[name]:
            raise SettingsError(f"the FCM service account has no text in {name!r}: is it the file from Google?")
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
        usable = urlsplit(url).scheme == "https" and bool(urlsplit(url).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(f"the FCM {name} {url!r} must be of the form https://host[:port]")


def _oauth_error(error: google_errors.RefreshError) -> str:
    """OAuth's own short word, never its description: that may quote what was sent."""
    answer = error.args[1] if len(error.args) > 1 else None
    word = answer.get("error") if isinstance(answer, Mapping) else None
    return word[:80] if isinstance(word, str) else "refused"
