"""A request over an HTTP/2 connection, and the one result it ends in.

The result is the server's `Response`, even if its end never came. Without a response it is an `Answer`: UNSENT if the
server cannot have acted on the request (it had no stream, its body was not complete, or the server says so), else
UNKNOWN.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from hpack import HeaderTuple

from notifier.providers.contract import Answer, Outcome


@dataclass(frozen=True, slots=True)
class Response:
    """The server's answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


STATUS_DIGITS: Final = 3
MAX_STREAMS: Final = 1000  # of our own, for a server that names no limit
MAX_UNANSWERED: Final = 3  # requests in a row, on a connection on which the server sends frames
RESPONSE_BYTES: Final = 16_384  # more of an error page is not kept
STATUSES: Final = range(200, 600)

Result: TypeAlias = Response | Answer
# A set in order of arrival: any member can be removed in constant time.
Waiting: TypeAlias = "OrderedDict[Request, None]"


@dataclass(slots=True, eq=False, repr=False)  # its parts hold a token and a message
class Request:
    """One request on its way; `result` is set exactly once. Times are on the event loop's clock, in seconds.

    deadline: one timeout after the call; once the request is begun, one timeout after that, for the answer.
    """

    headers: list[HeaderTuple]
    body: bytes
    send_by: float
    deadline: float
    max_response: int = RESPONSE_BYTES
    result: asyncio.Future[Result] = field(init=False)
    timer: asyncio.TimerHandle | None = None
    give_up: Callable[[Request, str], None] | None = None  # of the connection that has its stream
    stream_id: int = 0
    started_at: float = 0.0
    sent: int = 0  # bytes of the body
    response_headers: dict[bytes, bytes] = field(default_factory=dict)
    received: bytes = b""

    def __post_init__(self) -> None:
        self.result = asyncio.get_running_loop().create_future()

    def resolve(self, result: Result) -> None:
        """Set the result, unless the caller has gone."""
        if not self.result.done():
            self.result.set_result(result)

    @property
    def complete(self) -> bool:
        """Whether the whole request has left."""
        return self.stream_id > 0 and self.sent == len(self.body)

    def respond(self) -> None:
        """Resolve with the response as far as it came; UNKNOWN if it has no status."""
        status = self.response_headers.get(b":status", b"")
        # int() raises for thousands of digits; a status has three.
        if len(status) == STATUS_DIGITS and status.isdigit() and int(status) in STATUSES:
            self.resolve(Response(int(status), self.response_headers, self.received))
        else:
            self.resolve(Answer(Outcome.UNKNOWN, reason="NoStatus"))

    def lose(self, reason: str, passed: asyncio.Future[bool] | None = None) -> None:
        """Resolve without the end of a response: by its status if that came; else UNKNOWN if the whole request has
        left, and UNSENT if not. passed: of the `Answer`.
        """
        if self.response_headers:
            self.respond()
            return
        complete = self.complete
        outcome = Outcome.UNKNOWN if complete else Outcome.UNSENT
        self.resolve(Answer(outcome, reason=reason, passed=passed if complete else None))
