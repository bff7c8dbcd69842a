"""Traffic that is recorded while other things go on, to preview rates on it: one recording at a time, bounded."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from notifier.errors import NotifierError
from notifier.forecast.trace import Recorded, trace_of
from notifier.operations.preview.recording import Recorder, RecordingError

MAX_EVENTS: Final = 50_000  # replayed in about a second
LONGEST_S: Final = 3_600
LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording. until: when it ends by itself. problem: why it broke off, or ''."""

    events: int = 0
    users: int = 0
    began_at: datetime | None = None
    until: datetime | None = None
    is_running: bool = False
    problem: str = ""


class Traffic:
    """Record the traffic that is accepted. For any thread."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lines: list[bytes] = []
        self._now = Recording()

    def start(self, seconds: float) -> None:
        """Record what is accepted from now on. Raises RecordingError where a recording runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise RecordingError("a recording is running; stop it first")
            self._lines, self._stop = [], threading.Event()
            began, seconds = time.time(), min(seconds, LONGEST_S)
            self._now = Recording(0, 0, _moment(began), _moment(began + seconds), is_running=True)
            self._thread = threading.Thread(target=self._record, args=(seconds, self._stop), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the recording, if one runs; what it has is kept."""
        with self._lock:
            thread = self._thread
            self._stop.set()
        if thread is not None:
            thread.join(LOOK_EVERY_S + 1)

    def now(self) -> Recording:
        """How it stands."""
        return self._now

    def trace(self) -> Recorded:
        """Return what has been recorded so far; empty if nothing was."""
        return trace_of(self._lines[:MAX_EVENTS])

    def _record(self, seconds: float, stop: threading.Event) -> None:
        users, problem, ends = set[str](), "", time.monotonic() + seconds
        try:
            with Recorder(self._redis) as recorder:
                while not stop.wait(max(0.0, min(LOOK_EVERY_S, ends - time.monotonic()))):
                    self._look(recorder, users)
                    if time.monotonic() >= ends or len(self._lines) >= MAX_EVENTS:
                        break
                self._look(recorder, users)
        except NotifierError as error:
            problem = str(error)
        self._tell(users, problem, is_running=False)

    def _look(self, recorder: Recorder, users: set[str]) -> None:
        lines = [line.encode() for line in recorder.read()]
        users.update(user for user in trace_of(lines))
        self._lines += lines[: MAX_EVENTS - len(self._lines)]
        self._tell(users, "", is_running=True)

    def _tell(self, users: set[str], problem: str, *, is_running: bool) -> None:
        now = self._now
        self._now = Recording(len(self._lines), len(users), now.began_at, now.until, is_running, problem)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
