"""Faults by name, in each provider's own form, and the scripts that people write with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from h2.errors import ErrorCodes
from pydantic import TypeAdapter, ValidationError

from notifier.simulators.wire import Reply

# Scripts name a token endpoint by its path, among the device tokens. Its replies are OAuth's.
TOKEN_ENDPOINT: Final = "/token"  # noqa: S105 - its path
HMS_TOKEN_ENDPOINT: Final = "/oauth2/v3/token"  # noqa: S105 - Huawei's
TOKEN_ENDPOINTS: Final = (TOKEN_ENDPOINT, HMS_TOKEN_ENDPOINT)
OAUTH: Final = "oauth"

PAGE: Final = "<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
SOON_S: Final = 5
AFTER: Final = {"Retry-After": str(SOON_S)}
SLOW_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in words, and each platform's reply; a platform without this fault has no entry."""

    says: str
    replies: Mapping[str, Reply] = field(default_factory=dict)


def _everywhere(says: str, **options: Any) -> Fault:
    return Fault(says, dict.fromkeys(("apns", "fcm", "webpush", "hms", "expo", OAUTH), Reply(**options)))


def _refusal(says: str, forms: str) -> Fault:
    """Make a fault that is an answer. forms: each platform's status and reason, as `table` prints them."""
    split = [form.split() for form in forms.split(", ")]
    return Fault(says, {platform: Reply(int(status), "".join(reason)) for platform, status, *reason in split})


def _later(says: str, fault: Fault, **options: Any) -> Fault:
    return Fault(says, {platform: replace(reply, **options) for platform, reply in fault.replies.items()})


_THROTTLED: Final = _refusal(
    "too many messages, come back later; without Retry-After",
    "apns 429 TooManyRequests, fcm 429 QUOTA_EXCEEDED, webpush 429, expo 400 MessageRateExceeded, "
    "oauth 429 rate_limit_exceeded",
)
_INTERNAL: Final = _refusal(
    "the server failed; the message may have been delivered all the same",
    "apns 500 InternalServerError, fcm 500 INTERNAL, webpush 500, hms 500 81000001, "
    "expo 500 INTERNAL_SERVER_ERROR, oauth 500 internal_failure",
)
_UNAVAILABLE: Final = _refusal(
    "the server is overloaded or down; without Retry-After",
    "apns 503 ServiceUnavailable, fcm 503 UNAVAILABLE, webpush 503, expo 503 SERVICE_UNAVAILABLE, "
    "oauth 503 internal_failure",
)

FAULTS: Final[Mapping[str, Fault]] = {
    # The device.
    "unregistered": _refusal(
        "the app is gone from the device: the token is dead",
        "apns 410 Unregistered, fcm 404 UNREGISTERED, webpush 410, hms 400 80300007, expo 400 DeviceNotRegistered",
    ),
    "expired_token": _refusal("the device token has expired: it is dead", "apns 410 ExpiredToken"),
    "bad_token": _refusal(
        "no such device token, or one of the other environment; not a proof that it is dead",
        "apns 400 BadDeviceToken, fcm 400 INVALID_ARGUMENT",
    ),
    "wrong_app": _refusal(
        "the token belongs to another app or sender",
        "apns 400 DeviceTokenNotForTopic, fcm 403 SENDER_ID_MISMATCH, webpush 403 VapidPkHashMismatch",
    ),
    # The message.
    "payload_too_large": _refusal(
        "the message is too large",
        "apns 413 PayloadTooLarge, fcm 400 INVALID_ARGUMENT, webpush 413, hms 400 80300008, expo 400 MessageTooBig",
    ),
    "unknown_reason": _refusal(
        "a refusal with a word that no list has",
        "apns 400 ReasonOfTomorrow, fcm 400 STATUS_OF_TOMORROW, webpush 400 ReasonOfTomorrow, hms 400 80399999, "
        "expo 400 CODE_OF_TOMORROW",
    ),
    # Our credentials.
    "wrong_topic": _refusal("the key may not send to this topic", "apns 400 TopicDisallowed"),
    "bad_credentials": _refusal(
        "the provider token is wrong; APNs goes back to one stream",
        "apns 403 InvalidProviderToken, fcm 401 UNAUTHENTICATED, webpush 401, hms 401 80200001, "
        "expo 401 UNAUTHORIZED, oauth 400 invalid_grant",
    ),
    "expired_credentials": _refusal(
        "the provider token is too old; APNs goes back to one stream",
        "apns 403 ExpiredProviderToken, fcm 401 UNAUTHENTICATED, webpush 403 BadJwtToken, hms 401 80200003",
    ),
    "too_many_token_updates": _refusal(
        "a new provider token within 20 minutes of the last", "apns 429 TooManyProviderTokenUpdates"
    ),
    "forbidden": _refusal(
        "the key or the service account may not do this; FCM without an errorCode",
        "apns 403 Forbidden, fcm 403 PERMISSION_DENIED, webpush 403, hms 400 80300002, expo 403 FORBIDDEN",
    ),
    "third_party_auth": _refusal(
        "FCM or Expo may not reach Apple, Google or the browser with the credentials they were given",
        "fcm 401 THIRD_PARTY_AUTH_ERROR, expo 400 InvalidCredentials",
    ),
    "not_found": _refusal(
        "no such project or path; a 404 without an errorCode says nothing of the token",
        "apns 404 BadPath, fcm 404 NOT_FOUND, webpush 404, hms 404, expo 404 NOT_FOUND",
    ),
    # The server.
    "project_full": _refusal(
        "too many messages of the whole project, come back later",
        "fcm 429 RESOURCE_EXHAUSTED, hms 503, expo 429 TOO_MANY_REQUESTS",
    ),
    "throttled": _THROTTLED,
    "throttled_seconds": _later(f"the same, with Retry-After: {SOON_S}", _THROTTLED, headers=AFTER),
    "throttled_date": _later(f"the same, Retry-After as a date in {SOON_S} s", _THROTTLED, retry_at_s=SOON_S),
    "internal": _INTERNAL,
    "internal_seconds": _later(f"the same, with Retry-After: {SOON_S}", _INTERNAL, headers=AFTER),
    "unavailable": _UNAVAILABLE,
    "unavailable_seconds": _later(f"the same, with Retry-After: {SOON_S}", _UNAVAILABLE, headers=AFTER),
    "unavailable_date": _later(f"the same, Retry-After as a date in {SOON_S} s", _UNAVAILABLE, retry_at_s=SOON_S),
    "shutdown": _refusal("this server of Apple's is being shut down", "apns 503 Shutdown"),
    "bad_gateway": _everywhere("the HTML page of a proxy in between", status=502, reason=PAGE),
    # The connection.
    "slow": _everywhere(f"taken, but the answer comes {SLOW_MS / 1000:g} s late", delay_ms=SLOW_MS),
    "silent": _everywhere("taken, and never answered; the connection stays open", silent=True),
    "cut": _everywhere("taken, and the connection is cut before the answer", drop=True),
    "go_away": Fault(
        "taken, and GOAWAY: this request is the last of its connection", {"apns": Reply(go_away="Shutdown")}
    ),
    "refused_stream": Fault(
        "not processed: RST_STREAM with REFUSED_STREAM", {"apns": Reply(reset=ErrorCodes.REFUSED_STREAM.name)}
    ),
    "reset_stream": Fault(
        "taken, and RST_STREAM with INTERNAL_ERROR", {"apns": Reply(reset=ErrorCodes.INTERNAL_ERROR.name)}
    ),
}


_REPLY: Final = TypeAdapter(Reply)


class UnusableError(Exception):
    """A request that cannot be met; the text is for the person who asked."""


def why(error: ValidationError, known: Iterable[str], *where: str) -> str:
    """Describe the first mistake for people: place, kind and value. known: the keys of the top level."""
    first: Any = error.errors(include_url=False)[0]
    place = ".".join([*where, *map(str, first["loc"])])
    match first["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{place}: unknown" + f"; give any of: {', '.join(known)}" * (len(first["loc"]) == 1)
        case "model_type":
            return f"{place}: give an object, not {first['input']!r}"
        case "value_error":
            return f"{place}: {first['ctx']['error']}"
    said = first["msg"].removeprefix("Input ")
    return f"{place}: {first['input']!r} {said}"


def read_reply(platform: str, entry: object) -> Reply | None:
    """Read one reply that a person wrote: a fault's name, or `Reply`'s fields with or without ``fault``.

    Returns None if the reply exists, but not on this platform. Raises UnusableError.
    """
    if isinstance(entry, str):
        entry = {"fault": entry}
    if not isinstance(entry, dict):
        raise UnusableError(f"{entry!r} is no reply: give a fault's name or an object")
    given = dict(entry)
    name = given.pop("fault", None)
    reply: Reply | None = Reply()
    if name is not None:
        if not isinstance(name, str) or name not in FAULTS:
            raise UnusableError(f"{name!r} is no fault; --faults lists them")
        reply = FAULTS[name].replies.get(platform)
    try:
        asked = _REPLY.validate_json(json.dumps(given))  # in strict mode only JSON becomes a dataclass
    except ValidationError as error:
        raise UnusableError(why(error, ["fault", *(each.name for each in fields(Reply))])) from None
    if platform != "apns" and (asked.go_away or asked.reset):
        return None
    return replace(reply, **given) if reply is not None else None


def read_scripts(platforms: Iterable[str], document: object) -> dict[str, dict[str, list[Reply]]]:
    """Return the scripts of each platform from ``{token: reply or [reply, …]}``; see `read_reply`.

    If a platform lacks one of a token's replies, the token's script is empty there. None takes a script back: it is
    empty on every platform. Raises UnusableError, which names the token, if every platform lacks a reply.
    """
    if not isinstance(document, dict):
        raise UnusableError("give an object: by device token, what to answer")
    scripts: dict[str, dict[str, list[Reply]]] = {platform: {} for platform in platforms}
    for token, written in document.items():
        entries = written if isinstance(written, list) else [] if written is None else [written]
        known = False
        for platform, of_platform in scripts.items():
            speaks = OAUTH if token in TOKEN_ENDPOINTS else platform
            try:
                replies = [read_reply(speaks, entry) for entry in entries]
            except UnusableError as error:
                raise UnusableError(f"{token}: {error}") from None
            known = known or None not in replies
            of_platform[token] = [] if None in replies else [reply for reply in replies if reply is not None]
        if not known:
            raise UnusableError(f"{token}: no platform can give all of these answers")
    return scripts


def table() -> str:
    """Describe all faults for people: the name, the meaning, and each platform's form."""
    lines = []
    for name, fault in FAULTS.items():
        lines.append(f"{name:24}{fault.says}")
        forms = [f"{platform} {_form(reply)}" for platform, reply in fault.replies.items()]
        if any(reply.status != 200 for reply in fault.replies.values()):  # noqa: PLR2004
            lines.append(f"{'':24}  {', '.join(forms)}")
        elif len(fault.replies) == 1:
            lines.append(f"{'':24}  {', '.join(fault.replies)} alone")
    return "\n".join(lines)


def _form(reply: Reply) -> str:
    return f"{reply.status} {'(HTML)' if reply.reason.startswith('<') else reply.reason}".rstrip()
