"""Whether the other end of a connection has read what was sent: it has, once it answers a PING sent after that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

SILENCE_S: Final = 10.0  # so long a connection may take to show it
PAYLOADS: Final = 2**32


class Reads:
    """Asks by `ping`, which sends that payload; `on_silence` is called where no answer comes."""

    def __init__(self, ping: Callable[[bytes], None], on_silence: Callable[[], None]) -> None:
        self._ping = ping
        self._on_silence = on_silence
        self._asked: dict[bytes, asyncio.Future[bool]] = {}  # by the payload, in the order of asking
        self._asked_at = 0.0  # the last of them
        self._asks = 0

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def of(self, sent_at: float) -> asyncio.Future[bool]:
        """Ask whether what was sent at that moment has been read; false if the connection ends before."""
        if self._asked and self._asked_at > sent_at:
            return next(reversed(self._asked.values()))  # that was asked for later, so it tells this too
        loop = asyncio.get_running_loop()
        self._asks, self._asked_at = (self._asks + 1) % PAYLOADS, loop.time()
        payload = b"read" + self._asks.to_bytes(4)
        future = self._asked[payload] = loop.create_future()
        self._ping(payload)
        loop.call_later(SILENCE_S, self._expire, payload)
        return future

    def answered(self, payload: bytes) -> None:
        """Take the answer to a PING: frames are read in order, so it tells of those before it as well."""
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
