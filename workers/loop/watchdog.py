"""The watchdog ends a worker whose event loop hangs, and shows systemd and probes that the loop runs."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

FEED_S: Final = 1.0
LOOK_S: Final = 5.0
MAX_LOOKS: Final = 12  # in a row that find it unfed; counted, not timed, as a stopped process does not hang
LAST_WORDS_S: Final = 5.0
EXIT_STATUS: Final = 70  # as sysexits' EX_SOFTWARE
ALIVE_FILE: Final = "NOTIFIER_ALIVE_FILE"  # its modification time shows when the event loop last ran


class Signs:
    """The signs of life that systemd and probes look for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """environ: NOTIFY_SOCKET is systemd's; NOTIFIER_ALIVE_FILE names a file for probes."""
        self._socket = environ.get("NOTIFY_SOCKET", "")
        self._file = Path(environ[ALIVE_FILE]) if environ.get(ALIVE_FILE) else None

    def give(self, *states: str) -> None:
        """Send these states to systemd, as sd_notify(3) does, and touch the file for probes."""
        for state in states if self._socket else ():
            address = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as said:
                said.connect(address)
                said.send(state.encode())
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.touch(mode=0o600)


class Watchdog:
    """The event loop feeds it once a second. After a minute without, the process ends with a traceback."""

    def __init__(self, log: Any, environ: Mapping[str, str], *, look_s: float = LOOK_S) -> None:
        self._log, self._look_s = log, look_s
        self._signs = Signs(environ)
        self._fed = 0
        self._stop = threading.Event()

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work, and watch its event loop."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        task = asyncio.create_task(self._feed())
        self._signs.give("READY=1")
        try:
            await work
        finally:
            self._signs.give("STOPPING=1")
            self._stop.set()
            task.cancel()

    def feed(self) -> None:
        """Note a sign of life."""
        self._fed += 1
        self._signs.give("WATCHDOG=1")

    async def _feed(self) -> None:
        while True:
            self.feed()
            await asyncio.sleep(FEED_S)

    def _watch(self) -> None:
        seen, looks = -1, 0
        while not self._stop.wait(self._look_s):
            seen, looks = (seen, looks + 1) if self._fed == seen else (self._fed, 0)
            if looks >= MAX_LOOKS:
                # First, as the loop may hang because nobody reads the log: then nothing more can be written either.
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    threading.Timer(LAST_WORDS_S, os._exit, (EXIT_STATUS,)).start()
                self._log.critical("loop_stands_still", stood_s=round(looks * self._look_s), ends_with=EXIT_STATUS)
                faulthandler.dump_traceback(file=2, all_threads=True)
                os._exit(EXIT_STATUS)
