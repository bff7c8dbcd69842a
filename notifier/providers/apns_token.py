"""Apple's provider token: a JWT signed with the team's .p8 key, made anew neither too often nor too late."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from notifier.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_S: Final = 40 * 60.0  # Apple refuses a token of over 60 minutes…
LEAST_S: Final = 20 * 60.0  # …and a new one within 20 minutes of the last


class ProviderToken:
    """The `authorization` header's value, cached. clock: seconds since 1970.

    Raises SettingsError if the key is not a P-256 private key in PEM; the text never shows it.
    """

    def __init__(self, *, team_id: str, key_id: str, key: str, clock: Callable[[], float] = time.time) -> None:
        self._team_id = team_id
        self._key_id = key_id
        self._key = _load(key)
        self._clock = clock
        self._issued_at = 0.0
        self._authorization = b""

    def authorization(self) -> bytes:
        """Return ``bearer <JWT>``, signed at most 40 minutes ago."""
        # A clock that was set back would keep the token in use past its hour.
        if not 0 <= self._clock() - self._issued_at < REFRESH_S:
            self._sign()
        return self._authorization

    def renew(self, refused: bytes) -> bool:
        """Return whether a send with the token `refused` as expired is worth another try with a newer one."""
        if refused == self._authorization:
            if self._clock() - self._issued_at < LEAST_S:
                return False
            self._sign()
        return True

    def _sign(self) -> None:
        self._issued_at = self._clock()
        claims = {"iss": self._team_id, "iat": int(self._issued_at)}
        token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
        self._authorization = b"bearer " + token.encode()


def _load(pem: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        # From None: the parser's own words may quote what it could not read.
        raise SettingsError(
            "providers.apns.key: is not a provider key: give the text of the .p8 file from Apple's developer"
            " page, from -----BEGIN PRIVATE KEY----- to -----END PRIVATE KEY----- (without a password)"
        ) from None
    return key
