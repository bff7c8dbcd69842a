"""Live rates: a changed file, or rates published through Redis, hold within seconds, also for what waits (law 7)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from notifier.dispatch import calls, leaders
from notifier.errors import SettingsError
from notifier.rules.policies import Policies
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run_async
from notifier.settings import Settings, load_settings
from notifier.settings.loading import Seen, fingerprint
from notifier.store.published import PROBLEM, SOURCE, VERSION, Published, decode, read_rates

CHUNK: Final = 500  # gates in one call
TURN_MS: Final = 1_000  # the least time between two walks over all gates, by whichever worker
KEPT_S: Final = 3_600
LONGEST_WAIT_S: Final = 60.0  # for published rates to begin


class Reload:
    """Watches one configuration file, and the rates published in Redis, for one worker.

    version: of the rates that it follows. problem: what is wrong with what it was told last; '' where it follows it.
    """

    def __init__(self, path: Path, redis: Any, lanes: Sequence[str]) -> None:
        self.problem = ""
        self._path = path
        self._redis = redis
        self._lanes = lanes
        self._users_from: Path | None = None
        self._seen: Seen = None
        self._next: Seen = None  # as it was at the last look
        self._limited = False  # whether the rules in force hold for everybody
        self._published = Published()
        self.version = ""
        self._number = 0  # of this worker among those who took up the same rates
        self._log = structlog.get_logger("notifier.worker")

    async def begin(self, settings: Settings) -> Settings:
        """These settings, read from the file, or where rates are published those."""
        self.version, self._users_from = settings.rates_version, settings.users_from
        self._limited = _limits_everybody(settings)
        self._seen = ()  # the file may have changed since it was read: it is read once more
        self._published = await self._ask()
        loaded = await self._load(None) if self._published.version else None
        await run_async(self._redis, leaders.follow(self.version))
        return loaded[0] if loaded else settings

    async def changed(self) -> Policies | None:
        """The new rates, if there are any and they can be used; broken ones are logged, and the old ones go on.

        A file is read once it is the same at two looks in a row: half of one may be YAML, and say nothing of limits.
        """
        seen = await asyncio.to_thread(fingerprint, self._path, self._users_from)
        settled = seen in {self._seen, self._next, None}
        self._next = seen
        if not settled:
            return None
        published = await self._ask()
        if published == self._published and seen in {self._seen, None}:
            return None
        self._seen, self._published = seen, published
        followed = self.version, self.problem
        loaded = await self._load(seen)
        if loaded is None or followed == (self.version, ""):
            return None
        await run_async(self._redis, leaders.follow(self.version))
        key = redis_key("reload", self.version, "taken")
        pipe = self._redis.pipeline()
        pipe.incr(key)
        pipe.expire(key, KEPT_S)
        self._number, _ = await pipe.execute()
        self._log.info("config_taken_up", source=self._source, version=self.version)
        return loaded[1]

    def told(self) -> dict[Any, str]:
        """What this worker tells of itself in Redis; see `notifier.settings.published`."""
        return {VERSION: self.version, SOURCE: self._source, PROBLEM: self.problem}

    @property
    def _source(self) -> str:
        return "redis" if self._published.version else str(self._path)

    async def _ask(self) -> Published:
        return decode(*await self._redis.hmget(redis_key("rates"), "version", "at"))

    async def _load(self, seen: Seen) -> tuple[Settings, Policies] | None:
        """Read the rates. seen: of the file that is to be read; one that has changed by then has to wait."""
        try:
            applied = await self._redis.hget(redis_key("rates"), "rates") or b"" if self._published.version else None
            settings, policies = await asyncio.to_thread(read, self._path, applied)
            if seen is not None and await asyncio.to_thread(fingerprint, self._path, self._users_from) != seen:
                self._seen = ()
                return None
            if applied is None:
                self._check_whole(settings)
            if applied is not None:
                await self._until(self._published.at_us)
        except SettingsError as error:
            self.problem = str(error).splitlines()[0]
            self._log.error("config_refused", problems=str(error).splitlines())
            return None
        self.problem, self.version, self._users_from = "", settings.rates_version, settings.users_from
        self._limited = _limits_everybody(settings)
        return settings, policies

    def _check_whole(self, settings: Settings) -> None:
        """Raise SettingsError for a file that has lost the limits of everybody, and does not say so."""
        if self._limited and "user" not in settings.model_fields_set:
            raise SettingsError(
                f"{self._path}: the section user is missing, but the rules in force have one. Is the file complete?"
                " If there is to be no limit, write user: {}"
            )

    async def _until(self, at_us: int) -> None:
        """Wait for a moment on Redis's clock, so that every host changes at the same one."""
        seconds, us = await self._redis.time()
        left_s = (at_us - int(seconds) * 1_000_000 - int(us)) / 1_000_000
        await asyncio.sleep(min(max(left_s, 0.0), LONGEST_WAIT_S))

    async def retime(self) -> None:
        """Have every gate looked at again, once all workers that follow the new rules are known to.

        A worker that still followed the old ones may have set a gate by them, so each sees to it that one walk
        over the gates began after it had changed; one walk serves all who changed before.
        """
        if not self._number:
            return
        walked = int(await self._redis.get(redis_key("reload", self.version, "walked")) or 0)
        if walked < self._number:
            if not await self._redis.set(redis_key("reload", "turn"), "1", nx=True, px=TURN_MS):
                return  # somebody walks; it will be asked again
            taken = await self._redis.get(redis_key("reload", self.version, "taken"))
            for lane in self._lanes:
                await self._walk(lane)
            await self._redis.set(redis_key("reload", self.version, "walked"), taken or self._number, ex=KEPT_S)
        self._number = 0

    async def _walk(self, lane: str) -> None:
        cursor = "0"
        while True:
            cursor, _moved = await run_async(self._redis, calls.retime(lane, cursor, most=CHUNK))
            if cursor == "0":
                return


def read(path: Path, applied: bytes | None = None) -> tuple[Settings, Policies]:
    """Read the file, without stopping other threads for long. Raise SettingsError for what cannot be used.

    applied: rates as they were published, in the place of the file's.
    """
    # The collector would stop the event loop's thread as well, a fifth of a second for the users of a large file, to
    # find that they are no garbage. They stay, so it need not look at them again either.
    gc.disable()
    try:
        settings = load_settings(path, rates=None if applied is None else read_rates(applied))
        policies = settings.policies()
        gc.freeze()
    finally:
        gc.enable()
    return settings, policies


def _limits_everybody(settings: Settings) -> bool:
    return not settings.user.policy().is_empty
