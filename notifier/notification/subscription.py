"""A Web Push subscription, as a browser hands it out: read strictly, without a driver, and never shown.

Whoever can read one can send to the browser (the endpoint) and for the browser's eyes alone (the keys), so
neither stands in an error, a log or a repr.
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
MAX_KEPT: Final = 1_024  # subscriptions that were read lately: as many as a worker may have in flight…
MAX_KEPT_CHARACTERS: Final = 4_096  # …none of them longer than this
HOST_CHARACTERS: Final = 253  # what a resolver takes
PORTS: Final = range(1, 65536)
AUTH_BYTES: Final = 16
POINT_BYTES: Final = 65
UNCOMPRESSED: Final = 4
# The curve P-256 of FIPS 186-4: y² = x³ - 3x + b, modulo a prime.
P256_PRIME: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
P256_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
FIELDS: Final = frozenset({"endpoint", "keys", "expirationTime"})

# What a browser writes: lower case, no user, no fragment, nothing that a URL would have to quote.
_LABEL: Final = "[a-z0-9-]{1,63}"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL})*(?::([1-9][0-9]{{0,4}}))?"
_ENDPOINT: Final = re.compile(rf"(https://({_HOST}))/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_UP: Final = re.compile(r"/(?:\.|%2e){1,2}(?:[/?]|$)", re.IGNORECASE)  # would lead to another part of the server
HOST_PATTERN: Final = re.compile(rf"(?:\*\.)?{_HOST}")
# The sender's private key as web push libraries print it: the number alone, of 32 bytes.
KEY_NUMBER: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")

# The push services of the browsers there are: Chrome, Edge and the like; Firefox; Edge on Windows; Safari.
KNOWN_HOSTS: Final = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    "*.notify.windows.com",
    "*.push.apple.com",
)


@dataclass(frozen=True, slots=True, repr=False)
class Subscription:
    """Where and for whom to encrypt.

    origin: ``https://host[:port]`` of the endpoint. host: that without ``https://``. p256dh, auth: the
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

        Endpoints come from clients: without this a stranger would choose whom this machine talks to.
        """
        return is_among(self.host, hosts)


def is_among(host: str, hosts: Iterable[str]) -> bool:
    """Whether a host is one of these: ``host``, or ``*.domain`` for what is under it; with a port or 443."""
    return any(host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern for pattern in hosts)


def read_subscription(token: str) -> Subscription:
    """Return the subscription in the text that ``JSON.stringify(subscription)`` makes in the page.

    Raises ValueError, which says what is wrong and shows nothing of it.
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


# A worker reads each one several times on its way: to check it, for its route, to encrypt for it. The points of the
# curve make that a twentieth of a send.
_kept = lru_cache(maxsize=MAX_KEPT)(_read)


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, str) and _BASE64URL.fullmatch(value):
        with contextlib.suppress(binascii.Error):  # of a length that nothing encodes to
            return urlsafe_b64decode(value + "=" * (-len(value) % 4))
    raise ValueError(f"its keys.{name} is not base64url without padding")


def _check_point(raw: bytes) -> None:
    # A key that is no point of the curve would break every send to it; found out here, it is told to the producer.
    if len(raw) != POINT_BYTES or raw[0] != UNCOMPRESSED:
        raise ValueError(f"its keys.p256dh is not an uncompressed point of {POINT_BYTES} bytes")
    x, y = int.from_bytes(raw[1:33]), int.from_bytes(raw[33:])
    if max(x, y) >= P256_PRIME or (y * y - (x * x - 3) * x - P256_B) % P256_PRIME:
        raise ValueError("its keys.p256dh is not a point of the curve P-256")
