"""The checks of a strict APNs on one request, in Apple's own statuses and reasons. No I/O."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt

from notifier.notification.json_values import read_object
from notifier.simulators.checks.apns_push_types import PAYLOAD_BYTES, RULES, Rules
from notifier.simulators.wire import Message, Refusal, Reply

PATH: Final = "/3/device/"
TOKEN: Final = re.compile(r"(?:[0-9a-fA-F]{2}){32,100}")
TOPIC: Final = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
COLLAPSE_ID_BYTES: Final = 64
TOKEN_AGE_S: Final = 3600
CLOCK_SKEW_S: Final = 300
MDM_TOPIC: Final = "com.apple.mgmt."
PRIORITIES: Final = frozenset({"1", "5", "10"})


@dataclass(frozen=True, slots=True)
class Verdict(Message):
    """A judged request to Apple. trusted: its provider token is valid. id_header: the answer's header with its id."""

    trusted: bool
    id_header: bytes = b"apns-id"


@dataclass(kw_only=True)
class Checks:
    """topics: the known bundle ids; team_keys: key id to (team id, public PEM); clock: seconds since 1970.

    token_update_s: the least time between two new provider tokens of a key; Apple's is 20 minutes, 0 is none.
    by_certificate: every client has shown a certificate, and needs no token.
    """

    topics: set[str]
    team_keys: Mapping[str, tuple[str, str]]
    clock: Callable[[], float]
    token_update_s: Callable[[], float]
    by_certificate: bool = False
    _issued_at: dict[str, int] = field(default_factory=dict)  # by provider token with a right signature
    _updated: dict[str, float] = field(default_factory=dict)  # by key id: when its last new token came

    def expire_tokens(self) -> None:
        """From now on refuse, as expired, every provider token that was ever accepted."""
        self._issued_at = dict.fromkeys(self._issued_at, 0)

    def judge(self, headers: Mapping[str, str], body: bytes, at_us: int) -> Verdict:
        """Judge a request as a strict APNs does. at_us: when the request came, since 1970."""
        path = headers.get(":path", "")
        token = path.removeprefix(PATH) if path.startswith(PATH) else ""
        trusted = False
        payload: dict[str, Any] = {}
        reply = Reply()
        try:
            _check_target(headers, path)
            self.check_provider(headers)
            trusted = True
            _check_token(token)
            rules = RULES.get(headers.get("apns-push-type", ""))
            self._check_topic(headers, rules)
            _check_headers(headers)
            # Apple accepts a malformed payload, and drops the message: a test should fail.
            payload = read_payload(body, rules.payload_bytes if rules else PAYLOAD_BYTES, bad="BadPayload")
            _check_push_type(headers, rules, payload)
        except Refusal as refusal:
            reply = refusal.reply
        return Verdict(token, reply, id_in(headers, "apns-id"), arrival_fields(headers, payload, at_us), trusted)

    def check_provider(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without a valid provider token, unless clients show certificates."""
        if self.by_certificate:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            raise Refusal(403, "MissingProviderToken")
        issued_at = self._issued_at.get(token)
        if issued_at is None:
            if scheme.lower() != "bearer":
                raise Refusal(403, "InvalidProviderToken")
            issued_at = self._verify(token)
            self._check_update(token)
            self._issued_at[token] = issued_at
        age_s = self.clock() - issued_at
        if age_s > TOKEN_AGE_S:
            raise Refusal(403, "ExpiredProviderToken")
        if age_s < -CLOCK_SKEW_S:
            raise Refusal(403, "InvalidProviderToken")

    @property
    def tokens_seen(self) -> int:
        return len(self._issued_at)

    def _check_update(self, token: str) -> None:
        key_id, now = jwt.get_unverified_header(token)["kid"], self.clock()
        if now - self._updated.get(key_id, -math.inf) < self.token_update_s():
            raise Refusal(429, "TooManyProviderTokenUpdates")
        self._updated[key_id] = now

    def _verify(self, token: str) -> int:
        # The caller checks the times, by this server's clock.
        options: Any = {"verify_iat": False, "require": ["iat", "iss"]}
        try:
            team_id, public_key = self.team_keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(token, public_key, algorithms=["ES256"], issuer=team_id, options=options)
        except (jwt.InvalidTokenError, KeyError, TypeError, ValueError):
            raise Refusal(403, "InvalidProviderToken") from None
        issued_at = claims["iat"]
        if type(issued_at) is not int:
            raise Refusal(403, "InvalidProviderToken")
        return issued_at

    def _check_topic(self, headers: Mapping[str, str], rules: Rules | None) -> None:
        topic = headers.get("apns-topic")
        if not topic:
            raise Refusal(400, "MissingTopic")
        if not TOPIC.fullmatch(topic):
            raise Refusal(400, "BadTopic")
        if rules and rules.by_token and self.by_certificate:
            raise Refusal(403, "MissingProviderToken")
        suffix = rules.suffix if rules else ""
        known = topic.endswith(suffix) and topic.removesuffix(suffix) in self.topics
        if not known and not (headers.get("apns-push-type") == "mdm" and topic.startswith(MDM_TOPIC)):
            raise Refusal(400, "TopicDisallowed")


def _check_target(headers: Mapping[str, str], path: str) -> None:
    if headers.get(":method") != "POST":
        raise Refusal(405, "MethodNotAllowed")
    if not path.startswith(PATH):
        raise Refusal(404, "BadPath")


def _check_token(token: str) -> None:
    if not TOKEN.fullmatch(token):
        raise Refusal(400, "BadDeviceToken" if token else "MissingDeviceToken")


def _check_headers(headers: Mapping[str, str]) -> None:
    message_id = headers.get("apns-id")
    if message_id is not None and not is_uuid(message_id):
        raise Refusal(400, "BadMessageId")
    expiration = headers.get("apns-expiration", "0")
    if not (expiration.isascii() and expiration.isdigit()):
        raise Refusal(400, "BadExpirationDate")
    if headers.get("apns-priority", "10") not in PRIORITIES:
        raise Refusal(400, "BadPriority")
    if len(headers.get("apns-collapse-id", "").encode()) > COLLAPSE_ID_BYTES:
        raise Refusal(400, "BadCollapseId")


def read_payload(body: bytes, max_bytes: int, *, bad: str) -> dict[str, Any]:
    """Return the payload of a request. bad: Apple's reason for a malformed one. Raises Refusal."""
    if not body:
        raise Refusal(400, "PayloadEmpty")
    if len(body) > max_bytes:
        raise Refusal(413, "PayloadTooLarge")
    payload = read_object(body)
    if payload is None or not isinstance(payload.get("aps", {}), dict):
        raise Refusal(400, bad)
    return payload


def _check_push_type(headers: Mapping[str, str], rules: Rules | None, payload: Mapping[str, Any]) -> None:
    if rules is None or not rules.needs(payload):
        raise Refusal(400, "InvalidPushType")
    # Apple refuses a background push of priority 10, which is also the default.
    if headers.get("apns-priority", "10") not in rules.priorities:
        raise Refusal(400, "BadPriority")
    if not rules.store and headers.get("apns-expiration") != "0":
        raise Refusal(400, "BadExpirationDate")


def arrival_fields(headers: Mapping[str, str], payload: Mapping[str, Any], at_us: int) -> dict[str, Any]:
    """Return the fields of the message's `Arrival` that its headers and its payload give."""
    alert, expiration = payload.get("aps", {}).get("alert"), headers.get("apns-expiration", "")
    expires = expiration.isascii() and expiration.isdigit()
    return {
        "collapse_id": headers.get("apns-collapse-id"),
        "data": {key: value for key, value in payload.items() if key != "aps"},
        "title": alert.get("title") if isinstance(alert, dict) else alert,
        "ttl_us": int(expiration) * 1_000_000 - at_us if expires else None,
        "app": headers.get("apns-topic"),
    }


def id_in(headers: Mapping[str, str], name: str) -> str:
    """Return the id that a client gave its request in this header, or a new one."""
    given = headers.get(name, "")
    return given if is_uuid(given) else str(uuid.uuid4())


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID in its canonical form."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
