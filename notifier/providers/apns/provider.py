"""Apple's push service: one connection, many notifications at once, a provider token that is signed here."""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from copy import copy
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import structlog

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.notification import Device
from notifier.providers.answers import unsendable
from notifier.providers.apns import answers as apns_answers
from notifier.providers.apns import broadcast
from notifier.providers.apns import options as apns_options
from notifier.providers.apns import tls as apns_tls
from notifier.providers.apns.options import PAYLOAD_BYTES, Options, push_type
from notifier.providers.apns.payload import limit, payload
from notifier.providers.apns.token import ProviderToken
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.providers.transport.http2.headers import literal, repeated
from notifier.texts import mask
from notifier.units import to_bytes

if TYPE_CHECKING:
    import ssl

    from hpack import HeaderTuple

    from notifier.providers.apns.settings import ApnsSettings
    from notifier.providers.apns.token_store import TokenStore
    from notifier.providers.transport.http2.channel import Channel
    from notifier.providers.transport.http2.requests import Response

LEAST_H2: Final = 4
NO_TOKEN_US: Final = 1_000_000  # until the store of provider tokens is asked again
OTHER_ENVIRONMENT: Final = (
    "the token may be of the other environment: Xcode's builds have tokens for `endpoint: sandbox`, those of"
    " TestFlight and the App Store for production; reported once"
)
ONE_ATTEMPT: Final = repeated(b"apns-expiration", b"0")  # no storage for a device that is off
APNS_IDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "apns-id.push-throttle").bytes
_VARIANT: Final = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


class ApnsProvider:
    """Sends to Apple's devices.

    settings: of one app. It signs in with a provider token (key_id, key: the PEM text of the .p8), or with its
    certificate if no key is given. tokens: the store in which all workers of the team share their provider token;
    without one, this process has its own. Raises SettingsError for a key or a file that cannot be used.
    """

    platform = "apns"

    def __init__(
        self, settings: ApnsSettings, *, key_id: str = "", key: str = "", tokens: TokenStore | None = None
    ) -> None:
        host, port, authority = apns_tls.split(settings.endpoint)
        self._service = f"https://{host}:{port}"
        self._token = ProviderToken(team_id=settings.team_id, key_id=key_id, key=key, store=tokens) if key else None
        tls, timeout_s = apns_tls.context(settings), settings.timeout_us / 1_000_000
        self._channel = self._open_channel(host=host, port=port, tls=tls, timeout_s=timeout_s)
        self._log = structlog.get_logger(__name__)
        self._warned_of_environment = False
        self._same_on_all = (
            repeated(b":method", b"POST"),
            repeated(b":scheme", b"https"),
            repeated(b":authority", authority),
        )
        self._send_to(settings.topic)

    def for_topic(self, topic: str) -> ApnsProvider:
        """The provider of another app with the same sign-in, over this one's connection; closing one closes both."""
        other = copy(self)
        other._send_to(topic)  # noqa: SLF001 - a copy of this one
        return other

    def _open_channel(self, *, host: str, port: int, tls: ssl.SSLContext, timeout_s: float) -> Channel:
        """Make the channel to Apple; the other client overrides this."""
        check_h2()
        from notifier.providers.transport.http2 import channel as http2_channel  # noqa: PLC0415 - an h2 that is too old cannot be imported

        return http2_channel.Channel(host=host, port=port, tls=tls, timeout_s=timeout_s)

    async def send(self, dispatch: Dispatch) -> Answer:
        notification = dispatch.notification
        try:
            options = apns_options.read(notification) if notification.apns else None
            if self._token is None:
                apns_options.check_by_certificate(notification)
            body = payload(notification, options)
            headers = self._headers(dispatch, options)
        except (InvalidNotificationError, ValueError) as error:
            return unsendable(error)
        if len(body) > PAYLOAD_BYTES and len(body) > limit(notification):
            return Answer(Outcome.REJECTED, reason="PayloadTooLarge")
        authorization = b""
        if self._token is not None:
            authorization = self._token.current() or await self._token.fetch()
            if not authorization:
                return Answer(Outcome.UNSENT, reason="NoProviderToken", retry_after_us=NO_TOKEN_US)
            headers.append(literal(b"authorization", authorization))
        if expiration := self._expiration(dispatch, options):
            headers.append(expiration)
        result = await self._channel.request(headers, body, send_by=dispatch.send_by)
        if isinstance(result, Answer):
            return result
        # Without options, a message has the topic that the configuration gives.
        own_topic = options is not None and (
            options.push_type not in self._without_options or options.topic not in {None, self._topic}
        )
        return await self._read(dispatch, result, authorization, own_topic=own_topic)

    def service(self, device: Device) -> str:
        del device
        return self._service

    async def probe(self, device: Device) -> bool:
        del device
        return await self._channel.lives()

    async def close(self) -> None:
        if self._token is not None:
            await self._token.close()
        await self._channel.close()

    async def _read(self, dispatch: Dispatch, result: Response, authorization: bytes, *, own_topic: bool) -> Answer:
        answer = apns_answers.read(result.status, result.headers, result.body, own_topic=own_topic)
        if answer.reason == "ExpiredProviderToken" and self._token and await self._token.renew(authorization):
            return Answer(Outcome.UNSENT, answer.status, answer.reason)
        if answer.outcome is Outcome.FAULT:
            self._log.debug(  # the circuit of the route tells people, once
                "apns_fault",
                job_id=dispatch.job_id,
                token=mask(dispatch.device.token),
                apns_id=apns_id(dispatch.job_id, dispatch.device.token),
                status=answer.status,
                reason=answer.reason,
            )
        if answer.reason == "BadDeviceToken" and not self._warned_of_environment:
            self._warned_of_environment = True
            self._log.warning("bad_device_token", token=mask(dispatch.device.token), hint=OTHER_ENVIRONMENT)
        return answer

    def _headers(self, dispatch: Dispatch, options: Options | None) -> list[HeaderTuple]:
        """All headers but authorization and expiration. Raises ValueError for a value that no header can carry."""
        # Apple asks for the path and the token outside the compression table; ids would only push the repeated
        # headers out of it.
        token, notification = dispatch.device.token, dispatch.notification
        if (channel_id := broadcast.channel_of(token)) and options:
            return self._to_channel(channel_id, options, apns_id(dispatch.job_id, token))
        if not (token.isascii() and token.isalnum()):  # nothing checks the header after this
            raise ValueError("the token is not hexadecimal")
        headers = [
            literal(b":path", b"/3/device/" + token.encode()),
            *self._same_on_all,
            *(self._kind(options) if options else self._without_options[push_type(notification)]),
            literal(b"apns-id", apns_id(dispatch.job_id, token).encode()),
        ]
        if notification.collapse_id is not None:
            headers.append(literal(b"apns-collapse-id", notification.collapse_id.encode()))
        return headers

    def _to_channel(self, channel_id: str, options: Options, request_id: str) -> list[HeaderTuple]:
        if problem := broadcast.problem(channel_id):
            raise ValueError(problem)
        bundle_id = (options.topic or self._topic).removesuffix(options.type.suffix)
        return [
            literal(b":path", b"/4/broadcasts/apps/" + bundle_id.encode()),
            *self._same_on_all,
            repeated(b"apns-push-type", options.push_type.encode()),
            repeated(b"apns-priority", b"%d" % options.priority),
            literal(b"apns-channel-id", channel_id.encode()),
            literal(b"apns-request-id", request_id.encode()),
        ]

    def _expiration(self, dispatch: Dispatch, options: Options | None) -> HeaderTuple | None:
        ttl_us = dispatch.ttl_us
        if broadcast.channel_of(dispatch.device.token):
            # If the channel stores nothing, which only the message's author knows, Apple refuses any other.
            if not dispatch.notification.apns.get("store"):
                return ONE_ATTEMPT
            ttl_us = broadcast.STORED_S * 1_000_000 if ttl_us is None else ttl_us
        if options and not options.store:
            return ONE_ATTEMPT
        if ttl_us is None:
            return None
        now_s = self._token.wall_s() if self._token else time.time()  # the store's clock, known with the token
        return literal(b"apns-expiration", b"%d" % math.ceil(now_s + ttl_us / 1_000_000))

    def _send_to(self, topic: str) -> None:
        self._topic = topic
        self._without_options = {
            kind: self._kind(Options(kind, None, apns_options.PUSH_TYPES[kind].priorities[0], True, {}, {}))
            for kind in ("alert", "background")
        }

    def _kind(self, options: Options) -> tuple[HeaderTuple, ...]:
        topic = options.topic or self._topic + options.type.suffix
        return (
            repeated(b"apns-topic", topic.encode()),
            repeated(b"apns-push-type", options.push_type.encode()),
            repeated(b"apns-priority", b"%d" % options.priority),
        )


def apns_id(job_id: str, token: str) -> str:
    """Return Apple's id of a job's message to one device: the same at each attempt; people may quote it to Apple.

    As `uuid.uuid5`, in a quarter of the time: uuid5 would take a twentieth of a send.
    """
    digest = hashlib.sha1(APNS_IDS + to_bytes(f"{job_id}:{token}"), usedforsecurity=False).hexdigest()
    parts = digest[:8], digest[8:12], f"5{digest[13:16]}", _VARIANT[digest[16]] + digest[17:20], digest[20:32]
    return "-".join(parts)


def check_h2() -> None:
    """Raise SettingsError if the installed h2 is the old one of apns2, which this client cannot use."""
    if int((installed := version("h2")).partition(".")[0]) < LEAST_H2:
        raise SettingsError(
            f"providers.apns.client: h2 needs h2 {LEAST_H2}, and here is h2 {installed}, as apns2 needs it: choose"
            " client apns2, or install push-throttle without the extra apns2"
        )
