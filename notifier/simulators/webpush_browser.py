"""The browser's side of Web Push: invented subscriptions, and the decryption of messages (RFC 8291).

This module shares no code with the encrypting side, so that both sides cannot have the same mistake.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PATH: Final = "/push/"
SALT_BYTES: Final = 16
POINT_BYTES: Final = 65
TAG_BYTES: Final = 16
ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve P-256


@dataclass(frozen=True, slots=True)
class Browser:
    """One subscribed browser: its key, and the secret that it shares with its sender."""

    key: ec.EllipticCurvePrivateKey
    auth: bytes

    @property
    def public_key(self) -> bytes:
        """The uncompressed point."""
        return self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def decrypt(self, body: bytes) -> bytes:
        """Return the decrypted body; raise ValueError where a real browser would drop the message."""
        salt, record_bytes, sender_bytes = body[:SALT_BYTES], int.from_bytes(body[16:20], "big"), body[20:21]
        if sender_bytes != bytes([POINT_BYTES]):
            raise ValueError("the header holds no key of the sender")
        sender, record = body[21 : 21 + POINT_BYTES], body[21 + POINT_BYTES :]
        if not TAG_BYTES < len(record) <= record_bytes:
            raise ValueError("it is not one whole record")
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        shared = _hmac(self.auth, self.key.exchange(ec.ECDH(), point))
        secret = _hmac(salt, _hmac(shared, b"WebPush: info\0" + self.public_key + sender + b"\x01"))
        key = _hmac(secret, b"Content-Encoding: aes128gcm\0\x01")[:16]
        nonce = _hmac(secret, b"Content-Encoding: nonce\0\x01")[:12]
        try:
            padded = AESGCM(key).decrypt(nonce, record, None)
        except InvalidTag:
            raise ValueError("it was encrypted for another browser, or changed on its way") from None
        plaintext = padded.rstrip(b"\0")
        if plaintext[-1:] != b"\x02":
            raise ValueError("it does not end like a last record")
        return plaintext[:-1]


@lru_cache(maxsize=10_000)
def browser(name: str) -> Browser:
    """Return the invented browser of this name: the same in every process."""
    key, auth = (
        hashlib.sha256(f"{what} of the simulated browser {name}".encode()).digest() for what in ("key", "auth")
    )
    number = int.from_bytes(key, "big") % (ORDER - 1) + 1
    return Browser(ec.derive_private_key(number, ec.SECP256R1()), auth[:16])


def subscription(origin: str, name: str) -> str:
    """Return a browser's subscription as its page would send it. origin: the simulator's, ``https://host:port``."""
    mine = browser(name)
    keys = {"p256dh": encode(mine.public_key), "auth": encode(mine.auth)}
    return json.dumps(
        {"endpoint": f"{origin}{PATH}{name}", "expirationTime": None, "keys": keys}, separators=(",", ":")
    )


def encode(raw: bytes) -> str:
    """Return base64url without padding."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
