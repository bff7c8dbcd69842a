"""Find out whether a server has read the data sent so far: it has once it answers a PING that was sent later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

SILENCE_S: Final = 10.0  # the longest wait for the answer to a PING
PAYLOADS: Final = 2**32


class Reads:
    """The PINGs of one connection. ping: sends one with this payload. on_silence: called if no answer comes."""

    def __init__(self, ping: Callable[[bytes], None], on_silence: Callable[[], None]) -> None:
        self._ping = ping
        self._on_silence = on_silence
        self._asked: dict[bytes, asyncio.Future[bool]] = {}  # by payload, in the order of the PINGs
        self._asked_at = 0.0  # when the last PING was sent
        self._asks = 0

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def of(self, sent_at: float) -> asyncio.Future[bool]:
        """Ask whether data that was sent at this time has been read; false if the connection ends before."""
        if self._asked and self._asked_at > sent_at:
            return next(reversed(self._asked.values()))  # this PING was sent later, so its answer is enough
        loop = asyncio.get_running_loop()
        self._asks, self._asked_at = (self._asks + 1) % PAYLOADS, loop.time()
        payload = b"read" + self._asks.to_bytes(4)
        future = self._asked[payload] = loop.create_future()
        self._ping(payload)
        loop.call_later(SILENCE_S, self._expire, payload)
        return future

    def answered(self, payload: bytes) -> None:
        """Take the answer to a PING: it answers the PINGs before it too, because frames are read in order."""
        while payload in self._asked:
            self._asked.pop(next(iter(self._asked))).set_result(True)

    def end(self) -> None:
        asked, self._asked = self._asked, {}
        for future in asked.values():
            future.set_result(False)

    def _expire(self, payload: bytes) -> None:
        if payload in self._asked:
            self.end()
            self._on_silence()
