"""The meaning of Apple's answers, as a table: status and reason to an Answer. Unknown ones never raise."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from notifier.notification.json_values import fields_of
from notifier.providers.answers import MINUTE_US, WAIT_US, Table, word
from notifier.providers.contract import Answer, Outcome

MS_US: Final = 1_000
DAY_MS: Final = 86_400_000  # two clocks differ by less
SERVER_ERROR_US: Final = 15 * MINUTE_US  # Apple: after a 5xx, retry after 15 minutes

# Apple refuses a message by 400, 410 or 413. These concern the sender or the address: credentials, a proxy, a host.
WHO_ASKS: Final = (401, 403, 404, 405, 407, 421)

TABLE: Final = Table(
    by_reason={
        (410, "Unregistered"): Outcome.DEAD_TOKEN,
        (410, "ExpiredToken"): Outcome.DEAD_TOKEN,
        (400, "ChannelNotRegistered"): Outcome.DEAD_TOKEN,
        (400, "FeatureNotEnabled"): Outcome.REFUSED,  # for broadcasts only: other messages of the route go on
        (429, "TooManyRequests"): Outcome.BUSY,  # for this one device, or channel
        (400, "IdleTimeout"): Outcome.RETRY,
        (403, "Forbidden"): Outcome.REJECTED,  # Apple: not to be tried again
        (400, "BadTopic"): Outcome.FAULT,
        (400, "MissingTopic"): Outcome.FAULT,
        (400, "TopicDisallowed"): Outcome.FAULT,
        (403, "BadCertificate"): Outcome.FAULT,
        (403, "BadCertificateEnvironment"): Outcome.FAULT,
        (403, "BadEnvironmentKeyIdInToken"): Outcome.FAULT,
        (403, "ExpiredProviderToken"): Outcome.FAULT,
        (403, "InvalidProviderToken"): Outcome.FAULT,
        (403, "MissingProviderToken"): Outcome.FAULT,
        (403, "UnrelatedKeyIdInToken"): Outcome.FAULT,
        (429, "TooManyProviderTokenUpdates"): Outcome.FAULT,
    },
    by_status={200: Outcome.DELIVERED, 429: Outcome.BUSY, **dict.fromkeys(WHO_ASKS, Outcome.FAULT)},
    # A redirect comes from a proxy: nothing reached Apple. A 5xx may have delivered.
    by_class={3: Outcome.FAULT, 4: Outcome.REJECTED, 5: Outcome.UNKNOWN},
    wait_us=WAIT_US | {Outcome.RETRY: MINUTE_US, Outcome.UNKNOWN: SERVER_ERROR_US},
    least_us={5: SERVER_ERROR_US},
)


# Refusals of the topic. If the message itself chose its topic, they are final, for this message only.
OF_TOPIC: Final = frozenset({(400, "BadTopic"), (400, "TopicDisallowed")})
ITS_OWN_TOPIC: Final = (
    "the message itself chose a topic or a push type that this key or certificate may not send to: leave apns.topic"
    " out, or enable this push type for the app at Apple"
)
NO_BROADCAST: Final = "enable Broadcast Capability under Push Notifications for this app at developer.apple.com"


def read(status: int, headers: Mapping[bytes, bytes], body: bytes, *, own_topic: bool = False) -> Answer:
    """Make the answer of a response. retry_after_us is set if the message is to be tried again.

    own_topic: the topic comes from the message's own options, not from the configuration alone.
    """
    content = fields_of(body)
    reason = word(content.get("reason"))
    answer = TABLE.read(status, reason, lambda name: headers.get(name.encode(), b"").decode("latin-1"))
    if answer.outcome is Outcome.DEAD_TOKEN:
        return replace(answer, gone_at_us=_gone_at_us(content.get("timestamp")))
    if reason == "FeatureNotEnabled":
        return replace(answer, help=NO_BROADCAST)
    if own_topic and (status, reason) in OF_TOPIC:
        return Answer(Outcome.REJECTED, status, reason, help=ITS_OWN_TOPIC)
    return answer


def _gone_at_us(timestamp_ms: object) -> int | None:
    """Read since when Apple knows that a token is gone; None for a time in the future."""
    if type(timestamp_ms) is int and 0 < timestamp_ms < time.time() * 1000 + DAY_MS:
        return timestamp_ms * MS_US
    return None
