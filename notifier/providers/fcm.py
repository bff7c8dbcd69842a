"""FCM over HTTP v1: pyfcm builds the messages, google-auth gets the access token, pooled aiohttp sends."""

from __future__ import annotations

import asyncio
import math
import random
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

import aiohttp
import requests
import structlog
from google.auth import exceptions as google_errors
from google.auth.transport import requests as google_transport
from google.oauth2 import service_account as google_accounts
from pyfcm import FCMNotification

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import mask
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.fcm_payload import (
    FAULT_WAIT_US,
    PAYLOAD_BYTES,
    SECOND_US,
    message_arguments,
    payload_size,
    read_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
ACCOUNT_FIELDS: Final = ("client_email", "private_key", "project_id", "token_uri")
FIRST_BACKOFF_S: Final = 0.2
LONGEST_BACKOFF_S: Final = 30.0
# Shorter than the four minutes after which Google's front ends close an idle connection.
KEEPALIVE_S: Final = 60.0
UNAUTHORIZED: Final = 401
# No connection, or none free in time: not a byte of the request left. All else may have reached FCM.
NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
TOKEN_LIFETIME_S: Final = 300.0  # assumed where the token endpoint names none
RENEW_BEFORE_S: Final = 300.0  # renewed that long before its end, or at four fifths of a short life
SPARE_S: Final = 10.0  # no longer used that long before its end, or at nine tenths of a short life


class FcmProvider:
    """Sends to FCM over kept connections; neither sleeps nor retries.

    service_account: the parsed JSON file of a Google service account. endpoint: scheme, host and port.
    ca_file: PEM to trust in place of the system's authorities, for FCM and the token endpoint alike.
    timeout_us: for a connection, for an answer, and for the token endpoint, each.
    max_connections: open at once; sends beyond them wait.
    Raises SettingsError, which never shows the key, for an account or a CA file that cannot be used.
    """

    platform: str = "fcm"

    def __init__(
        self,
        *,
        service_account: Mapping[str, Any],
        endpoint: str = "https://fcm.googleapis.com",
        ca_file: Path | None = None,
        timeout_us: int = 5 * SECOND_US,
        max_connections: int = 100,
    ) -> None:
        credentials = _credentials(service_account)
        _check_https("endpoint", endpoint)
        self._ssl = _ssl_context(ca_file)
        self._timeout_s = timeout_us / SECOND_US
        self._max_connections = max_connections
        self._messages = _Messages(credentials, str(service_account["project_id"]), endpoint)
        self._url: str = self._messages.fcm_end_point
        self._tokens = _AccessTokens(credentials, ca_file, self._timeout_s)
        self._backoff = _Backoff()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._log = structlog.get_logger(__name__)

    async def send(self, dispatch: Dispatch) -> Answer:
        """Send to one device; see `Provider.send`."""
        try:
            body = self._messages.build(dispatch)
        except InvalidNotificationError as error:
            return Answer(Outcome.REJECTED, reason=f"InvalidPayload: {error}")
        now = asyncio.get_running_loop().time()
        if self._closed or now >= dispatch.send_by:
            return Answer(Outcome.UNSENT, reason="Closed" if self._closed else "TooLate")
        if wait_us := self._backoff.left_us(now):
            return Answer(Outcome.UNSENT, reason="Unreachable", retry_after_us=wait_us)
        token = await self._tokens.get(dispatch.send_by)
        if isinstance(token, Answer):
            return token
        answer = await self._post(body, token, dispatch.send_by)
        if answer.outcome is Outcome.FAULT and answer.status != UNAUTHORIZED:  # that one the tokens tell, once
            self._log.error(
                "fcm_fault",
                job_id=dispatch.job_id,
                token=mask(dispatch.device.token),
                status=answer.status,
                reason=answer.reason,
            )
        return answer

    async def close(self) -> None:
        """Close the connections; sends still under way answer UNKNOWN, or UNSENT if they had not begun."""
        self._closed = True
        self._tokens.close()
        if self._session is not None:
            await self._session.close()

    async def _post(self, body: bytes, token: str, send_by: float) -> Answer:
        began = asyncio.get_running_loop().time()
        bound_s = min(self._timeout_s, send_by - began)
        if self._closed or bound_s <= 0:
            return Answer(Outcome.UNSENT, reason="Closed" if self._closed else "TooLate")
        # `connect` holds the wait for a free connection and its handshake, so that `total` can only run out
        # once the request is being written. Above the threshold aiohttp rounds up to whole seconds: never.
        timeout = aiohttp.ClientTimeout(total=bound_s + self._timeout_s, connect=bound_s, ceil_threshold=math.inf)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with self._pool().post(
                self._url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                answer = read_answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            return self._without_answer(error, began)
        except asyncio.CancelledError:
            # aiohttp cancels those who wait for a connection when the pool closes; a real one passes.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                return Answer(Outcome.UNSENT, reason="Closed")
            raise
        if self._backoff.worked(asyncio.get_running_loop().time()):
            self._log.info("fcm_reachable")
        if answer.status == UNAUTHORIZED and answer.outcome is Outcome.RETRY:
            return self._tokens.refused(token, answer)
        self._tokens.accepted(token)
        return answer

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections, keepalive_timeout=KEEPALIVE_S, ssl=self._ssl
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _without_answer(self, error: Exception, began: float) -> Answer:
        if not isinstance(error, NEVER_SENT):
            reason = "Timeout" if isinstance(error, TimeoutError) else type(error).__name__
            return Answer(Outcome.UNKNOWN, reason=reason)
        now = asyncio.get_running_loop().time()
        if self._backoff.failed(began, now):
            self._log.warning("fcm_unreachable", error=type(error).__name__)
        return Answer(Outcome.UNSENT, reason=type(error).__name__, retry_after_us=self._backoff.left_us(now) or None)


class _Messages(FCMNotification):
    """pyfcm for the form of a message and its address alone: what it sends with sleeps and retries."""

    def __init__(self, credentials: google_accounts.Credentials, project_id: str, endpoint: str) -> None:
        # pyfcm's annotation names the credentials of a person; it uses what every kind has.
        super().__init__(credentials=credentials, project_id=project_id)  # type: ignore[arg-type]
        self.FCM_END_POINT_BASE = f"{endpoint.rstrip('/')}/v1/projects"

    def build(self, dispatch: Dispatch) -> bytes:
        """Build the request's body; raises InvalidNotificationError for what FCM does not carry."""
        arguments = message_arguments(dispatch.notification, dispatch.ttl_us)
        body: bytes = self.parse_payload(fcm_token=dispatch.device.token, **arguments)  # type: ignore[no-untyped-call]
        # What is counted is a part of the body: a short one needs no count.
        if len(body) > PAYLOAD_BYTES and (size := payload_size(dispatch.notification)) > PAYLOAD_BYTES:
            raise InvalidNotificationError("body", f"{size} bytes on the wire; at most {PAYLOAD_BYTES} are allowed")
        return body

    @property
    def requests_session(self) -> NoReturn:
        raise NotImplementedError("sends go over FcmProvider's own session")


class _AccessTokens:
    """Google's access token: fetched in a thread, one fetch at a time, renewed before it ends."""

    def __init__(self, credentials: google_accounts.Credentials, ca_file: Path | None, timeout_s: float) -> None:
        self._credentials = credentials
        self._verify: str | bool = True if ca_file is None else str(ca_file)
        self._timeout_s = timeout_s
        self._token = ""
        self._usable_until = self._renew_at = -math.inf  # on the loop's clock
        self._proven = False  # FCM has accepted this very token
        self._refusal = Answer(Outcome.UNSENT, reason="Closed")  # what sends answer while there is none
        self._backoff = _Backoff()
        self._fetching: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(__name__)

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
        return Answer(Outcome.FAULT, answer.status, answer.reason, FAULT_WAIT_US)

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
        self._backoff.hold(asyncio.get_running_loop().time() + FAULT_WAIT_US / SECOND_US)


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


class _Backoff:
    """When to try again after failures: from 0.2 s doubled to 30 s, with jitter; by the loop's clock."""

    def __init__(self) -> None:
        self.failing = False
        self._next_s = FIRST_BACKOFF_S
        self._until = -math.inf
        self._changed = -math.inf

    def left_us(self, now: float) -> int:
        """Microseconds until the next try; 0 is now."""
        return max(math.ceil((self._until - now) * SECOND_US), 0) if self._until > now else 0

    def failed(self, began: float, now: float) -> bool:
        """Note a failed try; whether it is the first of an outage.

        Of many tries under way together only the first counts, and none that began before one that worked.
        """
        if began < self._changed:
            return False
        first, self.failing, self._changed = not self.failing, True, now
        self._until = now + self._next_s * random.uniform(0.5, 1.0)  # noqa: S311
        self._next_s = min(self._next_s * 2, LONGEST_BACKOFF_S)
        return first

    def worked(self, now: float) -> bool:
        """Note a try that worked; whether it ended an outage."""
        ended, self.failing, self._changed = self.failing, False, now
        self._next_s, self._until = FIRST_BACKOFF_S, -math.inf
        return ended

    def hold(self, until: float) -> None:
        """Wait until that moment: for what trying again soon cannot mend."""
        self.failing, self._until = True, until


def _credentials(account: Mapping[str, Any]) -> google_accounts.Credentials:
    if not isinstance(account, Mapping):
        raise SettingsError("the FCM service account must be a JSON object, as downloaded from Google")
    for name in ACCOUNT_FIELDS:
        if not isinstance(account.get(name), str) or not account[name]:
            raise SettingsError(f"the FCM service account has no text in {name!r}: is it the file from Google?")
    _check_https("service account's token_uri", account["token_uri"])
    make: Callable[..., google_accounts.Credentials] = google_accounts.Credentials.from_service_account_info
    try:
        return make(dict(account), scopes=[SCOPE])
    except Exception:  # noqa: BLE001 - whatever the parser meets, its text may quote the key
        raise SettingsError("the FCM service account's private_key is no usable RSA key in PEM form") from None


def _check_https(name: str, url: str) -> None:
    # An access token or an assertion on an open line is anybody's.
    try:
        usable = urlsplit(url).scheme == "https" and bool(urlsplit(url).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(f"the FCM {name} {url!r} must be of the form https://host[:port]")


def _ssl_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"the FCM ca_file {ca_file} cannot be used: {error}") from None


def _oauth_error(error: google_errors.RefreshError) -> str:
    """OAuth's own short word, never its description: that may quote what was sent."""
    answer = error.args[1] if len(error.args) > 1 else None
    word = answer.get("error") if isinstance(answer, Mapping) else None
    return word[:80] if isinstance(word, str) else "refused"
