"""A request on its way between the event loop and the thread of apns2, and which of them has it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from notifier.providers.contract import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifier.providers.transport.http2.requests import Result


class Request:
    """One POST on its way. `result` is set in the event loop, exactly once; the rest is the thread's once begun.

    headers: as for HTTP/2, in bytes. send_by: on the event loop's clock, in seconds; `send_by_s` and `begun_at` are on
    the thread's, `time.monotonic`.
    """

    __slots__ = (
        "_begun", "_given_up", "_lock", "begun_at", "body", "headers", "result", "send_by", "send_by_s", "sent",
        "stream_id", "timer",
    )  # fmt: skip

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, send_by: float) -> None:
        loop = asyncio.get_running_loop()
        self.headers = headers
        self.body = body
        self.send_by = send_by
        self.send_by_s = send_by - loop.time() + time.monotonic()
        self.result: asyncio.Future[Result] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.stream_id = 0
        self.sent = 0  # bytes of the body
        self.begun_at = 0.0
        self._lock = threading.Lock()
        self._begun = False
        self._given_up = False

    @property
    def begun(self) -> bool:
        """Whether anything of it may have left."""
        return self._begun

    def begin(self) -> bool:
        """Take it for sending; False if nobody waits for it any longer, or its moment has passed."""
        now = time.monotonic()
        with self._lock:
            if self._given_up or now >= self.send_by_s:
                return False
            self.begun_at, self._begun = now, True  # in this order: the other thread looks at it without the lock
            return True

    def give_up(self) -> bool:
        """Wait for it no longer; whether it had begun, so that its stream has to be ended."""
        with self._lock:
            self._given_up = True
            return self._begun

    def lost(self, reason: str) -> Answer:
        """Return the result without a response: UNKNOWN if the whole of it may have left, else UNSENT."""
        complete = self._begun and self.sent == len(self.body)
        return Answer(Outcome.UNKNOWN if complete else Outcome.UNSENT, reason=reason)

    def resolve(self, result: Result) -> None:
        """Set the result, in the event loop, unless there is one or the one who asked has gone."""
        if not self.result.done():
            self.result.set_result(result)
