"""A server that speaks FCM's HTTP v1 and Google's token endpoint over HTTPS, as strictly as the real ones."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from notifier.notification.json_values import fields_of
from notifier.simulators.certificates import write_whole
from notifier.simulators.checks.fcm import DURATION, is_valid
from notifier.simulators.faults import TOKEN_ENDPOINT
from notifier.simulators.oauth import OauthSimulator
from notifier.simulators.wire import Message, Reply, part

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
# FCM needs one of these scopes. firebase-admin asks for further ones, which are granted too.
SCOPES: Final = frozenset({SCOPE, "https://www.googleapis.com/auth/cloud-platform"})
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
# Google's libraries put this into an assertion, whatever the endpoint's address.
AUDIENCE: Final = "https://oauth2.googleapis.com/token"
ASSERTION_LIFE_S: Final = 3600
FAKE_MESSAGE: Final = "fake_message_id"  # FCM's name for every message that it only validated

# FCM's own error codes and the status word that goes with each; other reasons are status words themselves.
ERROR_CODES: Final = {
    "UNREGISTERED": "NOT_FOUND",
    "INVALID_ARGUMENT": "INVALID_ARGUMENT",
    "SENDER_ID_MISMATCH": "PERMISSION_DENIED",
    "QUOTA_EXCEEDED": "RESOURCE_EXHAUSTED",
    "UNAVAILABLE": "UNAVAILABLE",
    "INTERNAL": "INTERNAL",
    "THIRD_PARTY_AUTH_ERROR": "UNAUTHENTICATED",
}


@dataclass(kw_only=True, eq=False, repr=False)
class FcmSimulator(OauthSimulator):
    """FCM and its token endpoint on one free port of 127.0.0.1.

    It serves the projects of the service accounts that were given to `trust`.
    scripts: by device token; those under ``/token`` are for the token endpoint.
    token_lifetime_s: of new access tokens, in seconds; may be changed.
    """

    platform = "fcm"
    token_endpoint = TOKEN_ENDPOINT
    token_prefix = "ya29."  # noqa: S105 - as Google's begin

    # By project: the e-mail address and the public key, in PEM.
    _accounts: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.post("/v1/projects/{project}/messages:send", self._serve_message)]

    def trust(self, service_account: Path) -> None:
        """Accept the assertions that this service account signs, and no others for its project."""
        account = json.loads(service_account.read_text(encoding="utf-8"))
        self._accounts[account["project_id"]] = account["client_email"], public_key_of(account["private_key"])

    def _grant(self, form: Mapping[str, str]) -> tuple[str, str]:
        assertion = form.get("assertion", "")
        project, (client_email, public_key) = self._account_of(assertion)
        return project, self._assertion_error(form.get("grant_type", ""), assertion, client_email, public_key)

    def _error(self, reason: str) -> dict[str, Any]:
        return {"error": reason or "invalid_grant"}

    def _account_of(self, assertion: str) -> tuple[str, tuple[str, str]]:
        """Return the project and the account of the assertion's issuer; empty texts if no account is the issuer."""
        try:
            issuer = jwt.decode(assertion, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError:
            issuer = None
        return next((each for each in self._accounts.items() if each[1][0] == issuer), ("", ("", "")))

    def _assertion_error(self, grant: str, assertion: str, client_email: str, public_key: str) -> str:
        if grant != GRANT:
            return "unsupported_grant_type"
        try:
            claims = jwt.decode(
                assertion,
                public_key,
                algorithms=["RS256"],
                audience=[AUDIENCE, self.url + TOKEN_ENDPOINT],
                issuer=client_email,
                options={"require": ["iss", "aud", "iat", "exp", "scope"]},
            )
        except (jwt.PyJWTError, ValueError):
            return "invalid_grant"
        if claims["exp"] - claims["iat"] > ASSERTION_LIFE_S:
            return "invalid_grant"
        return "" if SCOPES.intersection(str(claims["scope"]).split()) else "invalid_scope"

    def _read_message(self, request: web.Request, body: bytes) -> Message:
        project = request.match_info["project"]
        refusal = self._refusal(request, project)
        asked = {} if refusal else fields_of(body)
        message, validate_only = asked.get("message"), asked.get("validate_only") is True
        takes = request.content_type == "application/json" and _is_whole(asked)
        reply = refusal or (Reply() if takes else Reply(400, "INVALID_ARGUMENT"))
        name = FAKE_MESSAGE if validate_only else f"0:{time.time_ns() // 1000}%{secrets.token_hex(8)}"
        fields = {
            "collapse_id": part(message, "android", "collapse_key", kind=str),
            "data": part(message, "data", kind=dict) or {},
            "title": part(message, "notification", "title", kind=str),
            "dry_run": validate_only,
            "ttl_us": _microseconds(part(message, "android", "ttl", kind=str)),
            "app": project,
        }
        return Message(part(message, "token", kind=str) or "", reply, f"projects/{project}/messages/{name}", fields)

    def _respond(self, reply: Reply, name: str) -> web.Response:
        headers = reply.all_headers()
        if reply.status == HTTPStatus.OK:
            return web.json_response({"name": name}, headers=headers)
        try:
            phrase = HTTPStatus(reply.status).phrase
        except ValueError:
            phrase = "Error"
        error: dict[str, Any] = {"code": reply.status, "message": phrase}
        if reply.reason:
            error["status"] = ERROR_CODES.get(reply.reason, reply.reason)
        if reply.reason in ERROR_CODES:
            kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
            error["details"] = [{"@type": kind, "errorCode": reply.reason}]
        return web.json_response({"error": error}, status=reply.status, headers=headers)

    def _refusal(self, request: web.Request, project: str) -> Reply | None:
        until, own_project = self._holder(request)
        if until <= time.monotonic():
            return Reply(401, "UNAUTHENTICATED")
        if project not in self._accounts:
            return Reply(404, "NOT_FOUND")
        return None if project == own_project else Reply(403, "PERMISSION_DENIED")


def _is_whole(asked: dict[str, Any]) -> bool:
    message = asked.get("message")
    known = asked.keys() <= {"message", "validate_only"} and isinstance(asked.get("validate_only", False), bool)
    return known and isinstance(message, dict) and is_valid(message)


def _microseconds(ttl: str | None) -> int | None:
    found = DURATION.fullmatch(ttl or "")
    return None if found is None else round(float(found[0][:-1]) * 1_000_000)


def public_key_of(private_key: str) -> str:
    """Derive the public key, in PEM, from a private one in PEM."""
    # The caller trusts the account. A check of the key's primes would take 40 ms.
    key = load_pem_private_key(private_key.encode(), password=None, unsafe_skip_rsa_key_validation=True)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def make_service_account(folder: Path, token_uri: str, project_id: str, name: str = "service-account") -> Path:
    """Write a new service account as Google hands it out (RSA 2048) into `name`.json of the folder; return its path."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "project_id": project_id,
        "private_key_id": secrets.token_hex(20),
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "client_email": f"simulator@{project_id}.iam.gserviceaccount.com",
        "client_id": "100000000000000000000",
        "token_uri": token_uri,
    }
    path = folder / f"{name}.json"
    write_whole(path, f"{json.dumps(account, indent=2)}\n".encode(), mode=0o600)
    return path
