"""What happened in a run, one line an event, its times relative to the beginning."""

import threading
import time
from dataclasses import dataclass


def wall_us() -> int:
    """The wall clock, in which the simulators and the workers' logs tell the time too."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Event:
    """One line: what was done to what."""

    at_us: int
    text: str


@dataclass
class Trouble:
    """A fault while it lasts. until_us: None as long as it does. kind: the name of the deed; target: whom it struck."""

    kind: str
    target: str
    since_us: int
    until_us: int | None = None

    def overlaps(self, since_us: int, until_us: int) -> bool:
        """Whether it lasted at some time in between."""
        return self.since_us <= until_us and (self.until_us is None or self.until_us >= since_us)


class History:
    """The events and troubles of one run. Threads share it. echo: print each line as it comes."""

    def __init__(self, *, echo: bool = False) -> None:
        self.began_us = wall_us()
        self.events: list[Event] = []
        self.troubles: list[Trouble] = []
        self._echo = echo
        self._lock = threading.Lock()

    def add(self, text: str) -> int:
        """Note an event; returns when."""
        with self._lock:
            at_us = wall_us()
            self.events.append(Event(at_us, text))
            if self._echo:
                print(self.line(at_us, text), flush=True)  # noqa: T201 - what was asked for
        return at_us

    def begin(self, kind: str, target: str, text: str) -> Trouble:
        """Note that a trouble begins."""
        trouble = Trouble(kind, target, wall_us())
        self.troubles.append(trouble)
        self.add(text)
        return trouble

    def end(self, trouble: Trouble, text: str) -> None:
        """Note that a trouble is over."""
        trouble.until_us = self.add(text)

    def line(self, at_us: int, text: str) -> str:
        """An event for people."""
        return f"{(at_us - self.began_us) / 1e6:9.3f}  {text}"
