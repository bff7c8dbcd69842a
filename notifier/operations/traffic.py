"""Record traffic in a thread, to preview rates on it: one recording at a time, of bounded size."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from notifier.errors import NotifierError
from notifier.forecast.trace import Recorded, trace_of
from notifier.operations.preview.recording import LOOK_EVERY_S, Recorder, RecordingError
from notifier.store.connection import unreadable

MAX_EVENTS: Final = 50_000  # replayed in about a second


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
    """Records accepted notifications. For any thread."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lines: list[bytes] = []
        self._now = Recording()

    def start(self, seconds: float) -> None:
        """Record what is accepted from now on. Raises RecordingError if a recording runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise RecordingError("a recording is running; stop it first")
            self._lines, self._stop = [], threading.Event()
            began = datetime.now(UTC)
            self._now = Recording(began_at=began, until=began + timedelta(seconds=seconds), is_running=True)
            self._thread = threading.Thread(target=self._record, args=(seconds, self._stop), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the recording, if one runs, and keep its events."""
        with self._lock:
            thread = self._thread
            self._stop.set()
        if thread is not None:
            thread.join(LOOK_EVERY_S + 1)

    def now(self) -> Recording:
        return self._now

    def trace(self) -> Recorded:
        """Return the events that were recorded so far."""
        return trace_of(self._lines[:MAX_EVENTS])

    def _record(self, seconds: float, stop: threading.Event) -> None:
        users, problem = set[str](), ""
        try:
            with Recorder(self._redis) as recorder:
                for part in recorder.parts(seconds, stop.wait):
                    lines = [line.encode() for line in part]
                    users.update(trace_of(lines))
                    self._lines += lines[: MAX_EVENTS - len(self._lines)]
                    self._now = replace(self._now, events=len(self._lines), users=len(users))
                    if len(self._lines) >= MAX_EVENTS:
                        break
        except Exception as error:  # noqa: BLE001 - it ends, whatever Redis holds
            problem = str(error if isinstance(error, NotifierError) else unreadable(error))
        self._now = replace(self._now, is_running=False, problem=problem)
