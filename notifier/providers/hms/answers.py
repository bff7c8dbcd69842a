"""The meaning of Huawei's answers, as a table: its code in the body, else the HTTP status. Unknown ones never raise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from notifier.notification.json_values import fields_of
from notifier.providers.answers import SECOND_US, WAIT_US, Table
from notifier.providers.contract import Answer, Outcome

OK: Final = 200
SUCCESS: Final = "80000000"
PARTIAL: Final = "80100000"  # some tokens of the request are wrong; our requests have one token
ALL_TOKENS: Final = "80300007"
# Words in the text of these two codes if the app or the account lacks a right, and the token is not at fault.
NOT_THE_TOKEN: Final = ("noRight", "noPushTypeRight", "countryNotSupport", "Penalty", "appinfoError")
NO_CODE: Final = "NoCode"  # our own word: the answer is not Huawei's, such as a proxy's page
_CODE: Final = re.compile(r"[0-9]{8}")

CODES: Final[Mapping[str, Outcome]] = {
    SUCCESS: Outcome.DELIVERED,
    PARTIAL: Outcome.DEAD_TOKEN,
    ALL_TOKENS: Outcome.DEAD_TOKEN,
    # The message is wrong: a parameter, its structure, its time to live, an unchecked image, its size, its tokens.
    **dict.fromkeys(("80100001", "80100003", "80100004", "80100022", "80300008", "80300010"), Outcome.REJECTED),
    # Our access token: missing or of another app, and expired. One new token is fetched for all sends.
    **dict.fromkeys(("80200001", "80200003"), Outcome.UNSENT),
    # The app: Push Kit is off, or the id in the address is another app's; a penalty.
    **dict.fromkeys(("80300002", "80300037"), Outcome.FAULT),
    "80300029": Outcome.FULL,  # too many test messages
    "80600003": Outcome.RETRY,  # Huawei's sign-in service did not answer
    "81000001": Outcome.UNKNOWN,  # an internal error
}

TABLE: Final = Table(
    by_reason={(200, NO_CODE): Outcome.UNKNOWN, (503, ""): Outcome.FULL},  # Huawei's flow control
    by_status={
        200: Outcome.UNKNOWN,  # an unknown code: Huawei may have taken the message
        400: Outcome.REJECTED,
        401: Outcome.UNSENT,
        404: Outcome.FAULT,
        408: Outcome.RETRY,
        413: Outcome.REJECTED,
        429: Outcome.FULL,
    },
    by_class={3: Outcome.FAULT, 4: Outcome.FAULT, 5: Outcome.UNKNOWN},
    wait_us=WAIT_US | {Outcome.RETRY: 10 * SECOND_US},
)


def read(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Make the answer of a response; its body may be anything. headers: by a name in any case."""
    said = fields_of(body)
    code = str(said.get("code", ""))
    reason = code if _CODE.fullmatch(code) else NO_CODE if code or status == OK else ""
    known = CODES.get(reason)
    if known is Outcome.DELIVERED:
        return Answer(Outcome.DELIVERED, status) if status == OK else Answer(Outcome.UNKNOWN, status, reason)
    if known is Outcome.DEAD_TOKEN and any(word in str(said.get("msg")) for word in NOT_THE_TOKEN):
        known = Outcome.REJECTED
    return TABLE.read(status, reason, lambda name: headers.get(name, ""), known)
