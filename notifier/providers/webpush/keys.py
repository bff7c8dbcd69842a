"""The key of a web push sender, and the public half that a page needs."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from notifier.errors import SettingsError
from notifier.notification.subscription import KEY_NUMBER


def load_key(text: str) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a text: PEM, or its 43 characters of base64url as web push libraries print them.

    Raises SettingsError, which never shows the text, if it holds no key.
    """
    key: object = None
    text = text.strip()
    try:
        if KEY_NUMBER.fullmatch(text):
            key = ec.derive_private_key(int.from_bytes(urlsafe_b64decode(text + "="), "big"), ec.SECP256R1())
        else:
            key = serialization.load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise SettingsError(
            "providers.webpush.key_file: is not a VAPID key: give a private key of the curve P-256, in PEM without a"
            " password; `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE` makes one"
        )
    return key


def public_key(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the public half as a page needs it: base64url of the uncompressed point."""
    point = serialization.PublicFormat.UncompressedPoint
    raw = key.public_key().public_bytes(serialization.Encoding.X962, point)
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
