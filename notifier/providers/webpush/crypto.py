"""Encryption by RFC 8291 on the primitives of `cryptography`; signatures by py_vapid of pywebpush.

pywebpush's own encryption takes twice as long for the same bytes: see docs/explanation/performance.md.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from hmac import digest
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from py_vapid import Vapid02

from notifier.notification.subscription import Subscription
from notifier.providers.contract import Outcome
from notifier.providers.webpush.keys import load_key, public_key

CURVE: Final = ec.SECP256R1()
HASH: Final = "sha256"
SALT_BYTES: Final = 16
KEY_BYTES: Final = 16
NONCE_BYTES: Final = 12
RECORD_BYTES: Final = 4096
LAST_RECORD: Final = b"\2"  # the delimiter of the padding in the last record, which is the only one
LIFE_S: Final = 12 * 3600  # push services refuse more than 24 hours; the clocks may differ by the rest
REFRESH_S: Final = 6 * 3600.0
MAX_ORIGINS: Final = 1000
STRANGERS: Final = 4  # if more subscriptions in a row are refused, the key itself is wrong


def encrypt(subscription: Subscription, plaintext: bytes) -> bytes:
    """Encrypt the body for this browser (RFC 8291, aes128gcm): one record of at most 4,096 bytes."""
    receiver, auth = _bytes(subscription.p256dh), _bytes(subscription.auth)
    key = ec.generate_private_key(CURVE)  # a new key for each message, as the RFC asks (3.1)
    sender = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    secret = key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(CURVE, receiver))
    # HKDF (RFC 5869) for at most one hash of bytes: one HMAC extracts, one expands; the info of the second ends in 1.
    shared = digest(digest(auth, secret, HASH), b"WebPush: info\0" + receiver + sender + b"\1", HASH)
    salt = os.urandom(SALT_BYTES)
    extracted = digest(salt, shared, HASH)
    content_key = digest(extracted, b"Content-Encoding: aes128gcm\0\1", HASH)[:KEY_BYTES]
    nonce = digest(extracted, b"Content-Encoding: nonce\0\1", HASH)[:NONCE_BYTES]
    sealed = AESGCM(content_key).encrypt(nonce, plaintext + LAST_RECORD, None)
    return salt + struct.pack("!LB", RECORD_BYTES, len(sender)) + sender + sealed


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Authorization:
    """Our identity for one push service, and whether the service has accepted it so far.

    header: the value of ``Authorization``. A refusal does not say whether this subscription was made for another key,
    or our key, subject or clock is wrong for all. Several in a row, without a success between them, are our fault.
    Until then, the subscription is at fault if the service has accepted the header before; else it is not known.
    """

    def __init__(self, header: str, issued_at: float) -> None:
        self.header = header
        self.issued_at = issued_at
        self._taken = False
        self._refused: set[str] = set()

    def taken(self) -> None:
        self._taken = True
        self._refused.clear()

    def refused(self, endpoint: str) -> Outcome:
        """Note that the service refused it for this endpoint. Return the outcome.

        REJECTED: the subscription is for another key. FAULT: our key is wrong. RETRY: not known yet, so that one old
        subscription neither stops the others nor is given up for a mistake of ours.
        """
        if len(self._refused) <= STRANGERS:
            self._refused.add(endpoint)
        if len(self._refused) > STRANGERS:
            return Outcome.FAULT
        return Outcome.REJECTED if self._taken else Outcome.RETRY


class Vapid:
    """Signs our identity (RFC 8292), for each push service once in six hours.

    key: as `load_key` takes it; raises SettingsError otherwise. subject: ``mailto:`` or ``https:``, our contact for
    push services. clock: seconds since 1970.
    """

    def __init__(self, *, key: str, subject: str, clock: Callable[[], float] = time.time) -> None:
        # Not strict: the subject has been checked, more closely than py_vapid would.
        self._vapid = Vapid02(load_key(key), conf={"no-strict": True})  # type: ignore[no-untyped-call]
        self._subject = subject
        self.key_digest = hashlib.sha256(public_key(load_key(key)).encode()).hexdigest()[:16]
        self._clock = clock
        self._made: dict[str, Authorization] = {}

    def authorization(self, origin: str) -> Authorization:
        """Return our identity for this push service; origin: ``https://host[:port]``."""
        now = self._clock()
        made = self._made.get(origin)
        # If the clock was set back, a header could be used past its end.
        if made is None or not 0 <= now - made.issued_at < REFRESH_S:
            claims = {"sub": self._subject, "aud": origin, "exp": int(now) + LIFE_S}
            if len(self._made) >= MAX_ORIGINS:  # origins come from clients
                self._made.clear()
            header: str = self._vapid.sign(claims)["Authorization"]  # type: ignore[no-untyped-call]
            made = self._made[origin] = Authorization(header, now)
        return made
