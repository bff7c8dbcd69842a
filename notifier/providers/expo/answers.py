"""The meaning of Expo's answers: of a whole request, of a ticket in it, and of a receipt. Unknown ones never raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from notifier.notification.json_values import fields_of
from notifier.providers.answers import SECOND_US, WAIT_US, Table, word
from notifier.providers.contract import Answer, Outcome

OK: Final = 200
MAX_ID: Final = 100  # characters; Expo's have 36
GONE: Final = "DeviceNotRegistered"
# Our own word: a 200 without a ticket for the message, such as a proxy's page.
NO_TICKET: Final = "NoTicket"
CREDENTIALS: Final = (
    "Expo cannot reach Apple or Google for this app: renew its push credentials in the Expo dashboard,"
    " under Credentials"
)

TICKETS: Final[Mapping[str, Outcome]] = {
    GONE: Outcome.DEAD_TOKEN,
    "MessageTooBig": Outcome.REJECTED,
    "MessageRateExceeded": Outcome.BUSY,
    # A passing error of Expo, Apple or Google, as in Expo's own clients.
    "ExpoError": Outcome.RETRY,
    "ProviderError": Outcome.RETRY,
    # The app's credentials for Apple or Google, which Expo keeps: this app alone is affected; a person can repair it.
    "MismatchSenderId": Outcome.REFUSED,
    "InvalidCredentials": Outcome.REFUSED,
}
TABLE: Final = Table(
    by_status={
        200: Outcome.UNKNOWN,
        400: Outcome.REJECTED,  # one message of the request is malformed, or of another project: see `Batches`
        408: Outcome.RETRY,
        413: Outcome.REJECTED,
        429: Outcome.FULL,  # the project's 600 a second are used up
    },
    # 401 and 403: the access token is wrong. Any other 4xx comes from a wrong address. A 5xx may have delivered.
    by_class={3: Outcome.FAULT, 4: Outcome.FAULT, 5: Outcome.UNKNOWN},
    wait_us=WAIT_US | {Outcome.RETRY: 10 * SECOND_US, Outcome.FULL: 2 * SECOND_US},
)


def read_request(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Make the answer of a response without tickets, for each message of the request."""
    errors = fields_of(body).get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    reason = NO_TICKET if status == OK else word(first.get("code"))
    return TABLE.read(status, reason, lambda name: headers.get(name, ""))


def read_tickets(body: bytes, count: int) -> list[Mapping[str, Any]]:
    """Return the tickets of a response, in the order of the messages; none if their number differs."""
    data = fields_of(body).get("data")
    given = [data] if isinstance(data, dict) else data
    if not isinstance(given, list) or len(given) != count or not all(isinstance(ticket, dict) for ticket in given):
        return []
    return given


def read_ticket(ticket: Mapping[str, Any]) -> tuple[Answer, str]:
    """Return Expo's answer for one message, and the id of its receipt, or ''."""
    if ticket.get("status") == "ok":
        receipt = ticket.get("id")
        return Answer(Outcome.DELIVERED, OK), receipt if isinstance(receipt, str) and len(receipt) <= MAX_ID else ""
    if ticket.get("status") != "error":
        return Answer(Outcome.UNKNOWN, OK, NO_TICKET, TABLE.wait_us[Outcome.UNKNOWN]), ""
    reason = error_of(ticket)
    outcome = TICKETS.get(reason, Outcome.REJECTED)
    repair = CREDENTIALS if outcome is Outcome.REFUSED else ""
    return Answer(outcome, OK, reason, TABLE.wait_us.get(outcome), help=repair), ""


def error_of(ticket: Mapping[str, Any]) -> str:
    """Return Expo's word for the error in a ticket or a receipt; '' if there is none."""
    details = ticket.get("details")
    return word(details.get("error")) if isinstance(details, dict) else ""
