"""The meaning of push services' answers, as a table: status and reason to an Answer. Unknown ones never raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from notifier.notification.json_values import fields_of
from notifier.providers.answers import MINUTE_US, WAIT_US, Table, word
from notifier.providers.contract import Answer, Outcome

NO_POST: Final = 405
NUMBERS: Final = range(1000)

# Refusals of the sender. The status does not say whether we or the subscription are at fault: see `Authorization`.
# A 405 says that there is no push service at this address, which is the subscription's.
CREDENTIAL_STATUSES: Final = frozenset({401, 403, NO_POST})
CREDENTIAL_REASONS: Final = frozenset({(400, "VapidPkHashMismatch")})  # Apple's, of a subscription for another key
UNSAID: Final = dict.fromkeys((401, 403), "AnotherKey")  # the reason of such a refusal if it gives none

TABLE: Final = Table(
    by_reason=dict.fromkeys(CREDENTIAL_REASONS, Outcome.FAULT),
    by_status={
        # RFC 8030, section 7.3: 404 is the answer for an expired subscription. The services answer 410 for one that was
        # given up. Both come over TLS from the server that made the endpoint. The endpoint is the whole address, so no
        # path or project of ours can be wrong, as with FCM and APNs.
        404: Outcome.DEAD_TOKEN,
        410: Outcome.DEAD_TOKEN,
        401: Outcome.FAULT,
        403: Outcome.FAULT,
        NO_POST: Outcome.FAULT,
        406: Outcome.BUSY,  # Microsoft's status for too many
        408: Outcome.RETRY,
        429: Outcome.BUSY,
    },
    # The RFC asks for 201; 200, 202 and 204 are seen. A redirect is not followed: a stranger may choose its target. A
    # 5xx may have delivered.
    by_class={2: Outcome.DELIVERED, 3: Outcome.REJECTED, 4: Outcome.REJECTED, 5: Outcome.UNKNOWN},
    wait_us=WAIT_US | {Outcome.RETRY: MINUTE_US},
    least_us={429: MINUTE_US},  # FCM is one of the services, and asks for a minute
)


def read(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Make the answer of a response; its body may be anything. headers: by a name in any case."""
    reason = _reason(body) or UNSAID.get(status, "")
    return TABLE.read(status, reason, lambda name: headers.get(name, ""))


def is_about_credentials(answer: Answer) -> bool:
    return answer.status in CREDENTIAL_STATUSES or (answer.status, answer.reason) in CREDENTIAL_REASONS


def _reason(body: bytes) -> str:
    """Apple's reason, or Mozilla's number; the others write prose, which is not repeated."""
    parsed = fields_of(body)
    number = parsed.get("errno")
    return f"errno_{number}" if type(number) is int and number in NUMBERS else word(parsed.get("reason"))
