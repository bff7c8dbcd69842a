"""A request on its way between the event loop and the thread of apns2, and which of them has it."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from notifier.providers.contract import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifier.providers.transport.http2.requests import Response, Result


@dataclass(slots=True, eq=False, repr=False)  # its parts hold a token and a message
class Request:
    """One POST on its way. `result` and `passed` are the event loop's; the rest is the thread's once begun.

    headers: as for HTTP/2, in bytes. send_by: on the event loop's clock, in seconds; `send_by_s` and `begun_at` are on
    the thread's, `time.monotonic`. begun: whether anything of it may have left.
    """

    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    send_by: float
    send_by_s: float = field(init=False)
    result: asyncio.Future[Result] = field(init=False)
    timer: asyncio.TimerHandle | None = None
    stream_id: int = 0
    stream: Any = None  # hyper's, which the connection forgets when it is reset
    response: Response | None = None  # also one whose end has not come
    passed: asyncio.Future[bool] | None = None  # of the `Answer`
    sent: int = 0  # bytes of the body
    begun_at: float = 0.0
    begun: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _given_up: bool = False

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.send_by_s = self.send_by - loop.time() + time.monotonic()
        self.result = loop.create_future()

    def begin(self) -> bool:
        """Take it for sending; False if nobody waits for it any longer, or its moment has passed."""
        now = time.monotonic()
        with self._lock:
            if self._given_up or now >= self.send_by_s:
                return False
            self.begun_at, self.begun = now, True  # in this order: the other thread looks at it without the lock
            return True

    def give_up(self) -> bool:
        """Wait for it no longer; whether it had begun, so that its stream has to be ended."""
        with self._lock:
            self._given_up = True
            return self.begun

    def lost(self, reason: str) -> Result:
        """Return the result without a response's end: what came of it, else UNKNOWN if all of the request may have
        left, and UNSENT if not.
        """
        if self.response is not None:
            return self.response
        complete = self.begun and self.sent == len(self.body)
        return Answer(Outcome.UNKNOWN if complete else Outcome.UNSENT, reason=reason)

    def resolve(self, result: Result | bool) -> None:
        """Set the result, or whether it was read without one, in the event loop: once, and if somebody still asks."""
        if isinstance(result, bool):
            if self.passed is not None and not self.passed.done():
                self.passed.set_result(result)
        elif not self.result.done():
            self.result.set_result(result)
