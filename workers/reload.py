"""Live rates: a changed configuration file is taken up within seconds, and what waits follows it (law 7)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from notifier.errors import SettingsError
from notifier.limiter import lines
from notifier.limiter.scripts import run_async
from notifier.settings import Settings, load_settings

CHUNK: Final = 500  # gates in one call
TURN_MS: Final = 1_000  # the least time between two walks over all gates, by whichever worker
KEPT_S: Final = 3_600


class Reload:
    """Watches one configuration file for one worker."""

    def __init__(self, path: Path, redis: Any, lanes: Sequence[str]) -> None:
        self._path = path
        self._redis = redis
        self._lanes = lanes
        self._seen = _fingerprint(path)
        self._digest = ""
        self._number = 0  # of this worker among those who took up the same file
        self._log = structlog.get_logger("notifier.worker")

    async def changed(self) -> Settings | None:
        """The new settings, if the file has changed and can be used; a broken one is logged, and the old ones go on."""
        seen = await asyncio.to_thread(_fingerprint, self._path)
        if seen == self._seen or seen is None:
            return None
        self._seen = seen
        try:
            settings = await asyncio.to_thread(load_settings, self._path)
        except SettingsError as error:
            self._log.error("config_refused", problems=str(error).splitlines())
            return None
        self._digest = hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
        pipe = self._redis.pipeline()
        pipe.incr(f"notifier:reload:{self._digest}:taken")
        pipe.expire(f"notifier:reload:{self._digest}:taken", KEPT_S)
        self._number, _ = await pipe.execute()
        self._log.info("config_taken_up", file=str(self._path))
        return settings

    async def retime(self) -> None:
        """Have every gate looked at again, once all workers that follow the new rules are known to.

        A worker that still followed the old ones may have set a gate by them, so each sees to it that one walk
        over the gates began after it had changed; one walk serves all who changed before.
        """
        if not self._number:
            return
        walked = int(await self._redis.get(f"notifier:reload:{self._digest}:walked") or 0)
        if walked < self._number:
            if not await self._redis.set("notifier:reload:turn", "1", nx=True, px=TURN_MS):
                return  # somebody walks; it will be asked again
            taken = await self._redis.get(f"notifier:reload:{self._digest}:taken")
            for lane in self._lanes:
                await self._walk(lane)
            await self._redis.set(f"notifier:reload:{self._digest}:walked", taken or self._number, ex=KEPT_S)
        self._number = 0

    async def _walk(self, lane: str) -> None:
        cursor = "0"
        while True:
            cursor, _moved = await run_async(self._redis, lines.retime(lane, cursor, most=CHUNK))
            if cursor == "0":
                return


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - the one of a link's target, which is what a deployment replaces
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
