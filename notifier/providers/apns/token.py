"""Apple's provider token: a JWT signed with the team's .p8 key, one for all workers of the team.

Apple wants a token no older than an hour, and a new one no sooner than 20 minutes after the last. A worker that finds
no token in the store, or an old one, signs a new one and offers it to the store. If several do so at once, the store
takes one, and all send with it. The token's time and its age are by the store's clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from typing import Final

import jwt
import structlog
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from notifier.errors import SettingsError
from notifier.providers.apns.token_store import Kept, LocalTokenStore, TokenStore, TokenStoreError

SECOND_US: Final = 1_000_000
REFRESH_US: Final = 40 * 60 * SECOND_US  # Apple refuses a token of over 60 minutes…
LEAST_US: Final = 20 * 60 * SECOND_US  # …and a new one within 20 minutes of the last
USABLE_S: Final = 59 * 60.0  # while the store does not answer
AHEAD_US: Final = 60 * SECOND_US  # clocks of two Redis servers differ by less; by more, one was set back
LOOK_EVERY_S: Final = 60.0  # at the store: to find another worker's new token, to restore a lost one
AGAIN_S: Final = 1.0  # after a look that failed, and between two looks for one refused token
STORE_TIMEOUT_S: Final = 1.0  # a send waits no longer; then it is tried again
NONCE_BYTES: Final = 12
AUTHORIZATION: Final = re.compile(rb"bearer [!-~]+")  # it goes into a header unchanged


class ProviderToken:
    """The `authorization` header's value; lives in one event loop.

    store: in which the team shares it. patience_s: how long it may take to answer.
    Raises SettingsError if the key is not a P-256 private key in PEM; the text never shows it.
    """

    def __init__(
        self,
        *,
        team_id: str,
        key_id: str,
        key: str,
        store: TokenStore | None = None,
        patience_s: float = STORE_TIMEOUT_S,
    ) -> None:
        self._patience_s = patience_s
        self._team_id = team_id
        self._key_id = key_id
        self._key = _load(key)
        self._store = store or LocalTokenStore()
        # The key is part of the name: a new key under an old id cannot read the old key's token.
        self._name = f"apns:{team_id}:{key_id}:{_fingerprint(self._key)}"
        self._seal = AESGCM(_sealing_key(self._key))
        self._log = structlog.get_logger(__name__).bind(team_id=team_id, key_id=key_id)
        self._authorization = b""
        self._sealed = b""
        self._made_us = 0
        self._clock_ahead_s = 0.0  # the store's clock minus the loop's, since the store has answered
        self._usable_until = self._look_at = self._refused_at = -1.0  # on the loop's clock
        self._lock = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._asking = 0
        self._store_lost = False

    def current(self) -> bytes:
        """Return ``bearer <JWT>``; empty if there is none without waiting: then call `fetch`.

        It is also empty while earlier sends wait in `fetch`, so that sends keep their order.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_soon()
        return b"" if self._asking else self._usable()

    async def fetch(self) -> bytes:
        """Return ``bearer <JWT>`` as soon as the store has answered; empty if it does not. Callers keep their order."""
        turn = asyncio.get_running_loop().create_future()
        # Either way the caller goes on two steps of the loop later, so that callers keep their order.
        if self._usable():
            asyncio.get_running_loop().call_soon(_resolve, turn)
        else:
            self._look_soon().add_done_callback(lambda _: _resolve(turn))
        self._asking += 1
        try:
            await turn
        finally:
            self._asking -= 1
        return self._usable()

    def _usable(self) -> bytes:
        return self._authorization if asyncio.get_running_loop().time() < self._usable_until else b""

    async def renew(self, refused: bytes) -> bool:
        """Look for a newer token, because Apple refused this one as expired. Returns whether there is one."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if refused == self._authorization and now >= self._refused_at + AGAIN_S:
                self._refused_at = now
                await self._look(refused)
        return refused != self._authorization

    def wall_s(self) -> float:
        """Return the seconds since 1970 by the clock of the store that gave the token: ours may be wrong by hours."""
        return asyncio.get_running_loop().time() + self._clock_ahead_s

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _look_soon(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_in_turn())
        return self._looking

    async def _look_in_turn(self) -> None:
        async with self._lock:
            await self._look()

    async def _look(self, refused: bytes = b"") -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                self._take(*await self._ask(refused))
        except (TokenStoreError, TimeoutError) as error:
            self._look_at = asyncio.get_running_loop().time() + AGAIN_S
            log = self._log.debug if self._store_lost else self._log.warning
            log("provider_token_store_unreachable", why=str(error) or type(error).__name__)
            self._store_lost = True
        else:
            self._store_lost = False

    async def _ask(self, refused: bytes) -> tuple[Kept, bytes]:
        kept = await self._store.look(self._name)
        authorization = self._open(kept)
        if authorization and not self._is_old(kept, refused=authorization == refused):
            return kept, authorization
        kept = await self._replace(kept)
        if authorization := self._open(kept):
            return kept, authorization
        raise TokenStoreError("the provider token in Redis cannot be read")

    def _is_old(self, kept: Kept, *, refused: bool) -> bool:
        age_us = kept.now_us - kept.made_us
        return age_us >= (LEAST_US if refused else REFRESH_US) or age_us < -AHEAD_US

    async def _replace(self, kept: Kept) -> Kept:
        # A store that has lost its data gets back the token that Apple knows.
        mine = Kept(self._sealed, self._made_us, kept.now_us)
        if not kept.sealed and mine.sealed and not self._is_old(mine, refused=False):
            return await self._store.offer(self._name, b"", mine.sealed, mine.made_us)
        claims = {"iss": self._team_id, "iat": kept.now_us // SECOND_US}
        token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._seal.encrypt(nonce, b"bearer " + token.encode(), self._name.encode())
        return await self._store.offer(self._name, kept.sealed, sealed, kept.now_us)

    def _open(self, kept: Kept) -> bytes:
        if not kept.sealed:
            return b""
        try:
            opened = self._seal.decrypt(kept.sealed[:NONCE_BYTES], kept.sealed[NONCE_BYTES:], self._name.encode())
        except (InvalidTag, ValueError):
            opened = b""
        if AUTHORIZATION.fullmatch(opened):
            return opened
        self._log.warning(
            "provider_token_unreadable", why="the provider token in Redis was not encrypted with this key"
        )
        return b""

    def _take(self, kept: Kept, authorization: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._authorization, self._sealed, self._made_us = authorization, kept.sealed, kept.made_us
        age_s = (kept.now_us - kept.made_us) / SECOND_US
        self._usable_until = now + USABLE_S - age_s
        self._look_at = now + min(LOOK_EVERY_S, max(REFRESH_US / SECOND_US - age_s, AGAIN_S))
        self._clock_ahead_s = kept.now_us / SECOND_US - now


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # cancelled meanwhile
        turn.set_result(None)


def _load(pem: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        # From None: the parser's own words may quote the text that it could not read.
        raise SettingsError(
            "providers.apns.key_file, or NOTIFIER_APNS_KEY: is not a provider key: give the whole .p8 file from"
            " Apple's developer page, from the line BEGIN PRIVATE KEY to END PRIVATE KEY (without a password)"
        ) from None
    return key


def _fingerprint(key: ec.EllipticCurvePrivateKey) -> str:
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).hexdigest()[:8]


def _sealing_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    secret = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    # Every holder of the .p8 can derive this key, and nobody else: a copy of Redis's data reveals no token.
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"push-throttle provider token").derive(secret)
