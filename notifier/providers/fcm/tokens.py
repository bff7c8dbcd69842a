"""Google's access token: from a service account, whose assertion google-auth signs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from google.auth import jwt as google_jwt
from google.oauth2 import service_account as google_accounts

from notifier.errors import SettingsError
from notifier.providers.transport.oauth import is_plain

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
AUDIENCE: Final = "https://oauth2.googleapis.com/token"  # Google's name for itself, at any address
ASSERTION_LIFETIME_S: Final = 3600
PROJECT: Final = re.compile(r"[A-Za-z0-9.:_-]{1,100}")


def assertion(account: google_accounts.Credentials) -> bytes:
    """The form that asks for an access token of this account, signed now."""
    now = int(time.time())
    claims = {
        "iss": account.service_account_email,
        "scope": SCOPE,
        "aud": AUDIENCE,
        "iat": now,
        "exp": now + ASSERTION_LIFETIME_S,
    }
    signed = google_jwt.encode(account.signer, claims)  # type: ignore[no-untyped-call]
    return urlencode({"grant_type": GRANT, "assertion": signed}).encode()


def read_account(account: Mapping[str, Any]) -> google_accounts.Credentials:
    """The credentials of a service account; raises SettingsError, which never shows the key."""
    if not PROJECT.fullmatch(account["project_id"]):  # it is a part of the address that messages are sent to
        raise SettingsError("the FCM service account's project_id is not an id such as my-project-12345")
    if not _is_https(account["token_uri"]):
        where = repr(account["token_uri"])
        raise SettingsError(f"the FCM service account's token_uri {where} must be of the form https://host[:port]")
    make: Callable[..., google_accounts.Credentials] = google_accounts.Credentials.from_service_account_info
    try:
        return make(dict(account), scopes=[SCOPE])
    except Exception:  # noqa: BLE001 - the parser may raise anything, and its text may quote the key
        raise SettingsError("the FCM service account's private_key is no usable RSA key in PEM form") from None


def _is_https(url: str) -> bool:
    # Without TLS anybody could read the assertion, and use it.
    try:
        # urlsplit ignores line breaks, which would end the request's first line.
        return is_plain(url) and urlsplit(url).scheme == "https" and bool(urlsplit(url).hostname)
    except ValueError:
        return False
