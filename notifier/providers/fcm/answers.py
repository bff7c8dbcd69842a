"""The meaning of FCM's answers, as a table: status and errorCode to an Answer. Unknown ones never raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from notifier.notification.json_values import fields_of
from notifier.providers.answers import MINUTE_US, SECOND_US, WAIT_US, Table, word
from notifier.providers.contract import Answer, Outcome

OK: Final = 200
TOO_MANY: Final = 429
PROJECT_IS_FULL: Final = "ProjectQuotaExceeded"  # our own word: an errorCode does not say whose quota is used up
THIRD_PARTY: Final = "THIRD_PARTY_AUTH_ERROR"
NO_THIRD_PARTY: Final = (
    "FCM cannot reach Apple or the browsers for this app: upload its APNs key, or its web push certificate, in the"
    " Firebase console, under Project settings, Cloud Messaging"
)

TABLE: Final = Table(
    by_reason={
        (404, "UNREGISTERED"): Outcome.DEAD_TOKEN,
        (403, "SENDER_ID_MISMATCH"): Outcome.REJECTED,
        # The app's APNs key or web push key is wrong, not our access token: FCM still reaches Android by this route.
        (401, THIRD_PARTY): Outcome.REFUSED,
        # From Google's front end, for the whole project. An errorCode QUOTA_EXCEEDED is about the message's target.
        (429, "RESOURCE_EXHAUSTED"): Outcome.FULL,
        (429, PROJECT_IS_FULL): Outcome.FULL,
        # A proxy's page. The proxy may have passed the message on.
        (200, "NoMessageName"): Outcome.UNKNOWN,
    },
    by_status={
        200: Outcome.DELIVERED,
        # An invalid argument may be the message or the token: it never says that the token is dead.
        400: Outcome.REJECTED,
        # Our access token has expired. Nothing was processed, and one new token is fetched for all sends.
        401: Outcome.UNSENT,
        403: Outcome.FAULT,
        404: Outcome.FAULT,  # without UNREGISTERED it is the project or the endpoint that does not exist
        408: Outcome.RETRY,
        413: Outcome.REJECTED,
        429: Outcome.BUSY,
    },
    # A redirect or an odd 4xx comes from a wrong address. A 5xx may have delivered: one 503 was seen that had.
    by_class={3: Outcome.FAULT, 4: Outcome.FAULT, 5: Outcome.UNKNOWN},
    wait_us=WAIT_US | {Outcome.RETRY: SECOND_US},
    least_us={429: MINUTE_US},  # FCM asks for a minute after its quota
)


def read(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Make the answer of a response; its body may be anything. headers: by a name in any case."""
    answer = TABLE.read(status, _reason(status, fields_of(body)), lambda name: headers.get(name, ""))
    return replace(answer, help=NO_THIRD_PARTY) if answer.reason == THIRD_PARTY else answer


def _reason(status: int, parsed: Mapping[str, Any]) -> str:
    """FCM's errorCode; else the status word of Google's error form; else ''."""
    if status == OK:
        return "" if isinstance(parsed.get("name"), str) else "NoMessageName"
    error = parsed.get("error")
    if not isinstance(error, dict):
        return ""
    given = error.get("details")
    details = [d for d in given if isinstance(d, dict)] if isinstance(given, list) else []
    if status == TOO_MANY and any(map(_is_of_project, details)):
        return PROJECT_IS_FULL
    codes = [d.get("errorCode") for d in details]
    return next(filter(None, map(word, (*codes, error.get("status")))), "")


def _is_of_project(detail: Mapping[str, Any]) -> bool:
    """Whether it is a QuotaFailure that names the project, and not a device or a topic."""
    violations = detail.get("violations")
    found = [v for v in violations if isinstance(v, dict)] if isinstance(violations, list) else []
    return any("project" in str(v.get(key)).lower() for v in found for key in ("subject", "description"))
