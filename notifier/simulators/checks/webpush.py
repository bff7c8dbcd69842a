"""The checks of a strict push service: the sender (RFC 8292), the headers (RFC 8030), the body (RFC 8291)."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from notifier.simulators.webpush_browser import Browser, encode
from notifier.simulators.wire import Refusal, Reply

BODY_BYTES: Final = 4096
DECLARATIVE: Final = 8030
LONGEST_LIFE_S: Final = 24 * 3600
MAX_TTL_S: Final = 2_592_000  # thirty days: more is an error to Apple and Mozilla
TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
URGENCIES: Final = frozenset({"very-low", "low", "normal", "high"})
PARAMETER: Final = re.compile(r"\s*([tk])=([A-Za-z0-9_.=-]+)\s*")
DIGITS: Final = re.compile(r"[0-9]{1,10}")
Judged: TypeAlias = tuple[Reply, Mapping[str, Any]]  # the reply, and the decrypted message


class Checks:
    """clock: seconds since 1970, by which senders' tokens expire."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accepted: dict[str, dict[str, Any]] = {}  # the claims of tokens whose signature is right
        self._refused: set[str] = set()

    def expire(self) -> None:
        """From now on refuse every sender's token that was ever accepted."""
        self._refused.update(self._accepted)
        self._accepted.clear()

    def judge(self, origin: str, sender: str, to: Browser, headers: Mapping[str, str], body: bytes) -> Judged:
        """Judge a message. sender: the public key (base64url) that the subscription was made for."""
        try:
            self._check_sender(origin, sender, headers.get("Authorization", ""))
            _check_headers(headers)
            return Reply(), _read(to, body)
        except Refusal as refusal:
            return refusal.reply, {}

    def _check_sender(self, origin: str, sender: str, authorization: str) -> None:
        scheme, _, rest = authorization.partition(" ")
        found = {match[1]: match[2] for part in rest.split(",") if (match := PARAMETER.fullmatch(part))}
        if scheme.lower() != "vapid" or found.keys() != {"t", "k"}:
            raise Refusal(401, "MissingAuthorization")
        if found["k"] != sender:
            raise Refusal(403, "VapidPkHashMismatch")
        claims = self._claims(found["t"], found["k"])
        left_s = claims["exp"] - self._clock()
        subject = claims["sub"]
        known = isinstance(subject, str) and subject.startswith(("mailto:", "https:")) and "@localhost" not in subject
        if claims["aud"] != origin or not 0 < left_s <= LONGEST_LIFE_S or not known:
            raise Refusal(403, "BadJwtToken")

    def _claims(self, token: str, key: str) -> dict[str, Any]:
        claims = self._accepted.get(token)
        if claims is not None:
            return claims
        # The caller checks audience and expiry for each request, by this server's clock.
        options: Any = {"verify_aud": False, "verify_exp": False, "require": ["aud", "exp", "sub"]}
        try:
            raw = urlsafe_b64decode(key + "=" * (-len(key) % 4))
            public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
            claims = jwt.decode(token, public, algorithms=["ES256"], options=options)
        except (jwt.InvalidTokenError, ValueError):
            raise Refusal(403, "BadJwtToken") from None
        if token in self._refused or type(claims["exp"]) is not int:
            raise Refusal(403, "BadJwtToken")
        self._accepted[token] = claims
        return claims


def _check_headers(headers: Mapping[str, str]) -> None:
    ttl = headers.get("TTL", "")
    if not DIGITS.fullmatch(ttl) or int(ttl) > MAX_TTL_S:
        raise Refusal(400, "BadTtl")
    if headers.get("Urgency", "normal") not in URGENCIES:
        raise Refusal(400, "BadUrgency")
    topic = headers.get("Topic")
    # Apple decodes the topic, so it refuses a length that base64url cannot have.
    if topic is not None and (not TOPIC.fullmatch(topic) or len(topic) % 4 == 1):
        raise Refusal(400, "BadWebPushTopic")
    if headers.get("Content-Encoding") != "aes128gcm":
        raise Refusal(400, "BadContentEncoding")


def _read(to: Browser, body: bytes) -> Mapping[str, Any]:
    if len(body) > BODY_BYTES:
        raise Refusal(413, "PayloadTooLarge")
    # A real service accepts a wrong body, and the browser drops it where nobody sees it: a test should fail.
    try:
        message = json.loads(to.decrypt(body))
    except (ValueError, RecursionError):
        raise Refusal(400, "BadEncryption") from None
    if not isinstance(message, dict):
        return {}
    # A browser drops an incomplete declarative message where nobody sees it.
    shown = message.get("notification")
    if message.get("web_push") == DECLARATIVE and not _is_whole(shown):
        raise Refusal(400, "BadDeclarativeMessage")
    return message


def _is_whole(shown: object) -> bool:
    if not isinstance(shown, dict) or not isinstance(shown.get("title"), str) or not shown["title"]:
        return False
    links = [shown.get("navigate"), *(action.get("navigate") for action in shown.get("actions", ()))]
    return all(isinstance(link, str) and link.startswith("https://") for link in links)


def is_key(text: str) -> bool:
    """Whether this is a sender's public key: base64url of an uncompressed point."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return encode(raw) == text and bool(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw))
    except ValueError:
        return False
