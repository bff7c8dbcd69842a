"""A browser's Web Push subscription: parsed strictly, without a driver, and never shown.

Anybody who has one can send to the browser (by the endpoint) and encrypt for it (by the keys). So no error, log or
repr contains them.
"""

from __future__ import annotations

import binascii
import contextlib
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from notifier.notification.json_values import read_object

ENDPOINT_CHARACTERS: Final = 2048
MAX_KEPT: Final = 1_024  # subscriptions in the cache: as many as a worker may have in flight
MAX_KEPT_CHARACTERS: Final = 4_096  # of one in the cache
HOST_CHARACTERS: Final = 253  # the most that a resolver takes
PORTS: Final = range(1, 65536)
AUTH_BYTES: Final = 16
POINT_BYTES: Final = 65
UNCOMPRESSED: Final = 4
# The curve P-256 of FIPS 186-4: y² = x³ - 3x + b, modulo a prime.
P256_PRIME: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
P256_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
FIELDS: Final = frozenset({"endpoint", "keys", "expirationTime"})

# An endpoint as browsers write it: host in lower case, no user, no fragment, no character that a URL has to quote.
_LABEL: Final = "[a-z0-9-]{1,63}"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL})*(?::([1-9][0-9]{{0,4}}))?"
_ENDPOINT: Final = re.compile(rf"(https://({_HOST}))/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_UP: Final = re.compile(r"/(?:\.|%2e){1,2}(?:[/?]|$)", re.IGNORECASE)  # leads to another part of the server
HOST_PATTERN: Final = re.compile(rf"(?:\*\.)?{_HOST}")
# The sender's private key as web push libraries print it: the 32 bytes of its number.
KEY_NUMBER: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")

# The push services of the browsers: Chrome and others of its engine, Firefox, Edge on Windows, Safari.
KNOWN_HOSTS: Final = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    "*.notify.windows.com",
    "*.push.apple.com",
)


@dataclass(frozen=True, slots=True, repr=False)
class Subscription:
    """A browser's push address and keys.

    origin: ``https://host[:port]`` of the endpoint. host: the origin without ``https://``. p256dh, auth: the
    browser's public key and its secret, in base64url as the browser wrote them.
    """

    endpoint: str
    origin: str
    host: str
    p256dh: str
    auth: str

    def __repr__(self) -> str:
        return f"Subscription({self.host!r}, …)"

    def is_at(self, hosts: Iterable[str]) -> bool:
        """Whether the push service is one of these, see `is_among`.

        Endpoints come from clients: without this check a stranger could make this machine connect to any host.
        """
        return is_among(self.host, hosts)


def is_among(host: str, hosts: Iterable[str]) -> bool:
    """Whether a host is one of these: ``host``, or ``*.domain`` for its subdomains; without a port, it is 443."""
    return any(host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern for pattern in hosts)


def read_subscription(token: str) -> Subscription:
    """Parse the text that ``JSON.stringify(subscription)`` makes in the page.

    Raises ValueError, which says what is wrong without a part of the text.
    """
    return _kept(token) if len(token) <= MAX_KEPT_CHARACTERS else _read(token)


def _read(token: str) -> Subscription:
    given = read_object(token)
    if given is None or not {"endpoint", "keys"} <= given.keys() <= FIELDS:
        raise ValueError("is not what JSON.stringify(subscription) makes: an object of endpoint, keys, expirationTime")
    keys, expires = given["keys"], given.get("expirationTime")
    if not isinstance(keys, dict) or keys.keys() != {"p256dh", "auth"}:
        raise ValueError("its keys are not exactly p256dh and auth")
    if expires is not None and type(expires) not in {int, float}:
        raise ValueError("its expirationTime is neither null nor a number")
    endpoint = given["endpoint"]
    short = isinstance(endpoint, str) and len(endpoint) <= ENDPOINT_CHARACTERS
    url = _ENDPOINT.fullmatch(endpoint) if short else None
    if url is None or len(url[2]) > HOST_CHARACTERS or (url[3] and int(url[3]) not in PORTS):
        raise ValueError(f"its endpoint is not an https URL of at most {ENDPOINT_CHARACTERS} characters")
    if _UP.search(endpoint):
        raise ValueError("its endpoint has . or .. as a part of its path")
    if len(_bytes("auth", keys["auth"])) != AUTH_BYTES:
        raise ValueError(f"its keys.auth has not {AUTH_BYTES} bytes")
    _check_point(_bytes("p256dh", keys["p256dh"]))
    return Subscription(endpoint, url[1], url[2], keys["p256dh"], keys["auth"])


# A worker parses each subscription several times: to check it, to find its route, to encrypt for it. Without a cache,
# the check of the curve's point would take a twentieth of a send.
_kept = lru_cache(maxsize=MAX_KEPT)(_read)


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, str) and _BASE64URL.fullmatch(value):
        with contextlib.suppress(binascii.Error):  # a length that base64 cannot have
            return urlsafe_b64decode(value + "=" * (-len(value) % 4))
    raise ValueError(f"its keys.{name} is not base64url without padding")


def _check_point(raw: bytes) -> None:
    # Every send to a key that is no point of the curve would fail. The check here gives the error to the producer.
    if len(raw) != POINT_BYTES or raw[0] != UNCOMPRESSED:
        raise ValueError(f"its keys.p256dh is not an uncompressed point of {POINT_BYTES} bytes")
    x, y = int.from_bytes(raw[1:33]), int.from_bytes(raw[33:])
    if max(x, y) >= P256_PRIME or (y * y - (x * x - 3) * x - P256_B) % P256_PRIME:
        raise ValueError("its keys.p256dh is not a point of the curve P-256")
