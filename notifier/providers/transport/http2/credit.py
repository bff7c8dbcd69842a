"""A limit of the frames from a server: some for each request, some to spare, and few in one turn of the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from h2.events import (
    ConnectionTerminated,
    Event,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    TrailersReceived,
)

SPARE: Final = 1_000
A_REQUEST: Final = 8  # frames: headers, body, windows, and some to spare
A_SECOND: Final = 100
MAX: Final = 9_000  # enough for the answers to 1,000 requests under way
A_TURN: Final = 256
FOR_ALL_STREAMS: Final = 20  # the cost of a frame that touches every stream
HEADERS_A_CREDIT: Final = 16


class Credit:
    """Each frame costs one credit, or more if it makes much work. Each request and each second adds credits."""

    def __init__(self, now: float) -> None:
        self._left = self._least = float(SPARE)
        self._at = now

    @property
    def used_up(self) -> bool:
        return self._left < 0

    @property
    def turn_is_over(self) -> bool:
        return self._left < self._least

    def add_request(self) -> None:
        self._left = min(self._left + A_REQUEST, MAX)

    def begin_turn(self, now: float, *, earns: bool) -> None:
        """Begin a turn of the loop. earns: whether the seconds since the last one count."""
        if earns and self._left < SPARE:
            self._left = min(self._left + (now - self._at) * A_SECOND, SPARE)
        self._at = now
        self._least = self._left - A_TURN

    def charge(self, events: Iterable[Event]) -> None:
        """Charge for one frame, by its events."""
        self._left -= 1
        for event in events:
            match event:
                case ResponseReceived() | InformationalResponseReceived() | TrailersReceived():
                    self._left -= len(event.headers) // HEADERS_A_CREDIT
                case RemoteSettingsChanged() | ConnectionTerminated():
                    self._left -= FOR_ALL_STREAMS
