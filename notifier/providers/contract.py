"""The promise of every provider: one dispatch in, one answer out, nothing raised, nothing slept.

What a platform tells of itself before that (its tokens, options and settings), and where it is registered, is in
`notifier.notification.platforms`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from notifier.notification import Device, Notification
from notifier.texts import MAX_REASON, readable


class Outcome(StrEnum):
    """How a provider answered for one device."""

    DELIVERED = "delivered"  # the provider took it
    REJECTED = "rejected"  # final: this message will never be taken
    DEAD_TOKEN = "dead_token"  # noqa: S105 - final, and the token is gone for every message
    RETRY = "retry"  # the provider refused it for now and nothing reached the user; spends an attempt
    REFUSED = "refused"  # by this message's own fault, which a person may repair; nobody got it; spends an attempt
    BUSY = "busy"  # this device takes no more for now; nobody got it; no attempt
    FULL = "full"  # the whole route takes no more for now; nobody got it; no attempt
    UNSENT = "unsent"  # not a byte of the request left, or the provider said it was not processed; no attempt
    UNKNOWN = "unknown"  # the request left and no answer came: it may have reached the user
    FAULT = "fault"  # our credentials, topic or project are wrong, for every message: shout, wait; no attempt

    __hash__ = str.__hash__  # Enum's own is written in Python, and an answer is looked for in several sets


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class Answer:
    """A provider's answer for one device.

    status: the HTTP status, if there was one. reason: the provider's own word, such as ``Unregistered``.
    retry_after_us: the least time to wait before it is tried again, in microseconds, if one is known.
    passed: for UNKNOWN, where the request's connection can tell: becomes true once the provider has answered something
        that was asked for on that connection after it, so that it has read it; false if the connection ended before.
    gone_at_us: for DEAD_TOKEN the moment since which the provider knows it, in microseconds since 1970, if it tells.
    help: what a person should repair, where the fault is the message's own; it is logged once.
    seen: the reason in the words of a person, where the provider's own word is none, such as 'connection refused at …'.
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
        if not self.reason.isascii() or len(self.reason) > MAX_REASON:  # it goes into logs, scripts and registries
            self.reason = readable(self.reason)


@dataclass(slots=True)  # as `Answer`
class Dispatch:
    """One notification on its way to one device.

    job_id: stable over retries; a provider derives its own message id from it.
    ttl_us: the time left until the notification expires, in microseconds; None is without expiry.
    send_by: on the event loop's clock (`loop.time()`, seconds), the moment after which the request must not
        be started any more: the permit's lease could end before the answer. Past it, answer UNSENT.
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
        """Send to one device; never raises for what a network or a provider does, never sleeps to retry."""
        ...

    def service(self, device: Device) -> str:
        """The server that takes this device's messages: what a probe shows of it holds for all devices of its own."""
        ...

    async def probe(self, device: Device) -> bool:
        """Whether that server reads and answers now, by two exchanges that send no message, apart from the sends.

        The second begins after the answer to the first. One would not do: a server that was stopped and goes on may
        read its sockets in any order. After the second answer it has read what had come to it before. Never raises;
        works after `close` too, for what was still under way then.
        """
        ...

    async def close(self) -> None:
        """Close the connections; sends still under way answer UNKNOWN."""
        ...
