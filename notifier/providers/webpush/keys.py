"""The key of a web push sender: reads it; and, as a command, makes one and shows the public half for the page."""

from __future__ import annotations

import argparse
import os
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from notifier.errors import SettingsError, needs_extra
from notifier.notification.subscription import KEY_NUMBER

try:
    with needs_extra("a key for web push", "webpush"):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
except SettingsError as lacking:
    if __name__ != "__main__":
        raise
    sys.exit(str(lacking))

DESCRIPTION: Final = """\
Print the public key of a web push sender: what the page gives to pushManager.subscribe as applicationServerKey.
Where FILE does not exist, a new private key is written there first, readable for its owner alone.
"""


def load_key(text: str) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a text: PEM, or its 43 characters of base64url as web push libraries print them.

    Raises SettingsError, which never shows it, if it is none.
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
            " password; `python -m notifier.providers.webpush.keys FILE` makes one"
        )
    return key


def make_key() -> str:
    """Return a new private key in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    no_password = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password).decode()


def public_key(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the public half as a page wants it: base64url of the uncompressed point."""
    point = serialization.PublicFormat.UncompressedPoint
    raw = key.public_key().public_bytes(serialization.Encoding.X962, point)
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m notifier.providers.webpush.keys",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    path: Path = parser.parse_args(arguments).file
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(make_key())
        sys.stdout.write(public_key(load_key(path.read_text(encoding="utf-8"))) + "\n")
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}\n")
        return 1
    except (SettingsError, UnicodeDecodeError):
        sys.stderr.write(f"{path}: is not a private key of the curve P-256 in PEM\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
