"""What FCM's answers mean, as a table: status and errorCode to an Answer. Unknown ones never raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from notifier.providers.answers import MINUTE_US, SECOND_US, Table, parse, word
from notifier.providers.contract import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

OK: Final = 200

TABLE: Final = Table(
    by_reason={
        (404, "UNREGISTERED"): Outcome.DEAD_TOKEN,
        (403, "SENDER_ID_MISMATCH"): Outcome.REJECTED,
        # The app's APNs key or web push key, not our access token.
        (401, "THIRD_PARTY_AUTH_ERROR"): Outcome.FAULT,
        # Some proxy's page. It may have passed the message on.
        (200, "NoMessageName"): Outcome.UNKNOWN,
    },
    by_status={
        200: Outcome.DELIVERED,
        # An invalid argument may be the message or the token: it never says that the token is dead.
        400: Outcome.REJECTED,
        # Our access token is at its end. Nothing was processed, and the token is fetched anew once for all.
        401: Outcome.UNSENT,
        403: Outcome.FAULT,
        404: Outcome.FAULT,  # without UNREGISTERED it is the project or the endpoint that does not exist
        408: Outcome.RETRY,
        413: Outcome.REJECTED,
        429: Outcome.RETRY,
    },
    # A redirect or an odd 4xx comes from a wrong address. A 5xx may have delivered: a 503 that had was seen.
    by_class={3: Outcome.FAULT, 4: Outcome.FAULT, 5: Outcome.UNKNOWN},
    wait_us={Outcome.RETRY: SECOND_US, Outcome.FAULT: MINUTE_US, Outcome.UNKNOWN: 10 * SECOND_US},
    least_us={429: MINUTE_US},  # FCM asks for a minute after its quota
)


def read(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Return what this response means; any body is borne, JSON or not. headers: whatever the case of their names."""
    return TABLE.read(status, _reason(status, parse(body)), lambda name: headers.get(name, ""))


def _reason(status: int, parsed: Mapping[str, Any]) -> str:
    """FCM's errorCode; else the status word of Google's error form; else nothing."""
    if status == OK:
        return "" if isinstance(parsed.get("name"), str) else "NoMessageName"
    error = parsed.get("error")
    if not isinstance(error, dict):
        return ""
    details = error.get("details")
    codes = [d.get("errorCode") for d in details if isinstance(d, dict)] if isinstance(details, list) else []
    return next(filter(None, map(word, (*codes, error.get("status")))), "")
