"""FCM over HTTP v1: pyfcm builds the messages, google-auth gets the access token, pooled aiohttp sends."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import aiohttp
import structlog
from pyfcm import FCMNotification

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import mask
from notifier.providers.backoff import SECOND_US, Backoff, Turns
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.fcm_payload import PAYLOAD_BYTES, message_arguments, payload_size, read_answer
from notifier.providers.fcm_tokens import AccessTokens, check_https, read_account

# Shorter than the four minutes after which Google's front ends close an idle connection.
KEEPALIVE_S: Final = 60.0
UNAUTHORIZED: Final = 401
# No connection, or none free in time: not a byte of the request left. All else may have reached FCM.
NEVER_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


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
        credentials = read_account(service_account)
        check_https("endpoint", endpoint)
        self._ssl = _ssl_context(ca_file)
        self._timeout_s = timeout_us / SECOND_US
        self._max_connections = max_connections
        self._messages = _Messages(credentials, str(service_account["project_id"]), endpoint)
        self._url: str = self._messages.fcm_end_point
        self._tokens = AccessTokens(credentials, ca_file, self._timeout_s)
        self._backoff = Backoff()
        self._turns = Turns()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._log = structlog.get_logger(__name__)

    async def send(self, dispatch: Dispatch) -> Answer:
        """Send to one device; see `Provider.send`. One device's sends reach FCM in the order of the calls."""
        async with self._turns.turn(dispatch.device.token, dispatch.send_by) as held:
            return await self._send(dispatch) if held else Answer(Outcome.UNSENT, reason="TooLate")

    async def _send(self, dispatch: Dispatch) -> Answer:
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

    def __init__(self, credentials: Any, project_id: str, endpoint: str) -> None:
        super().__init__(credentials=credentials, project_id=project_id)
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


def _ssl_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise SettingsError(f"the FCM ca_file {ca_file} cannot be used: {error}") from None
