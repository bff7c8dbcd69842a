"""The contract of every provider: one dispatch in, one answer out. It never raises and never sleeps.

The other part of a platform (its tokens, options and settings), and how it is registered, is in
`notifier.notification.platforms`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from notifier.notification import Device, Notification
from notifier.texts import readable


class Outcome(StrEnum):
    """How a provider answered for one device."""

    DELIVERED = "delivered"  # the provider took it
    REJECTED = "rejected"  # final: the provider will never take this message
    DEAD_TOKEN = "dead_token"  # noqa: S105 - final, for every message: the token is dead
    RETRY = "retry"  # the provider refused it for now and nothing reached the user; spends an attempt
    REFUSED = "refused"  # for a cause of this message alone, which people can repair; nobody got it; spends an attempt
    BUSY = "busy"  # this device takes no more for now; nobody got it; no attempt
    FULL = "full"  # the whole route takes no more for now; nobody got it; no attempt
    UNSENT = "unsent"  # not a byte of the request left, or the provider said it was not processed; no attempt
    UNKNOWN = "unknown"  # the request left and no answer came: it may have reached the user
    FAULT = "fault"  # our credentials, topic or project are wrong for every message: alert and wait; no attempt

    __hash__ = str.__hash__  # Enum's own is slow Python, and outcomes are looked up in sets


@dataclass(slots=True)  # not frozen: a frozen one takes three times as long to make
class Answer:
    """A provider's answer for one device.

    status: the HTTP status, if there was one. reason: the provider's own word, such as ``Unregistered``.
    retry_after_us: the least time to wait before it is tried again, in microseconds, if one is known.
    passed: for UNKNOWN, if the connection can tell: true once the provider has answered something that was sent after
        the request, so it has read the request; false if the connection ended before.
    gone_at_us: for DEAD_TOKEN, since when the provider knows it, in microseconds since 1970, if it says so.
    help: what a person should repair, if only this message is at fault; logged once.
    seen: the reason in words for people, if the provider gave none, such as 'connection refused at …'.
    """

    outcome: Outcome
    status: int | None = None
    reason: str = ""
    retry_after_us: int | None = None
    gone_at_us: int | None = None
    help: str = ""
    seen: str = field(default="", compare=False)
    passed: asyncio.Future[bool] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.reason = readable(self.reason)  # it goes into logs, scripts and registries


@dataclass(slots=True)  # as `Answer`
class Dispatch:
    """One notification on its way to one device.

    job_id: stable over retries; a provider derives its own message id from it.
    ttl_us: the time left until the notification expires, in microseconds; None is without expiry.
    send_by: a time of the event loop's clock (`loop.time()`, seconds). Do not start the request after it, answer
        UNSENT: the permit's lease could end before the answer.
    """

    job_id: str
    device: Device
    notification: Notification
    ttl_us: int | None
    send_by: float


class Provider(Protocol):
    """Sends to one platform over connections that it keeps open; lives in one event loop."""

    platform: str

    async def send(self, dispatch: Dispatch) -> Answer:
        """Send to one device; never raises for an error of the network or the provider, never sleeps to retry."""
        ...

    def service(self, device: Device) -> str:
        """The server that takes this device's messages. The result of a probe holds for all devices of the server."""
        ...

    async def probe(self, device: Device) -> bool:
        """Whether that server reads and answers now, by two exchanges apart from the sends, which send no message.

        The second begins after the answer to the first. One is not enough: a server that was stopped and goes on may
        read its sockets in any order. After the second answer it has read everything that came before the probe. Never
        raises. Works after `close` too, because sends may still lack an answer then.
        """
        ...

    async def close(self) -> None:
        """Close the connections; sends still under way answer UNKNOWN."""
        ...
