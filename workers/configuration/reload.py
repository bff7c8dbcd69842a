"""Live rates: a changed file, or rates published through Redis, hold within seconds, also for waiting jobs (law 7)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from redis.exceptions import RedisError

from notifier.errors import SettingsError
from notifier.operations.action_log import KEPT, action_entry
from notifier.rules.policies import Policies
from notifier.scripts.keys import redis_key, under
from notifier.scripts.rule_table import own_rules_of
from notifier.settings import Settings, load_settings
from notifier.settings.loading import Seen
from notifier.settings.rates import change_to
from notifier.store.followed import Followed
from notifier.store.partitions import Partition, Partitions
from notifier.store.published import PROBLEM, SOURCE, VERSION, Published, decode, read_rates
from notifier.units import clock_us

T = TypeVar("T")

ONCE_S: Final = 60  # within this time all workers of a host see a change of their file
EARLY_S: Final = 5.0  # how long before their beginning published rates are read
LOOK_S: Final = 0.5  # between checks, until their beginning, that nobody withdrew or replaced them


class Reload:
    """Watches one configuration file, and the rates published in Redis, for one worker."""

    def __init__(self, path: Path, served: Sequence[Partition], settings: Settings) -> None:
        """served: with asyncio clients; all have the same rates. settings: as read from the file."""
        self._at = Partitions(served)
        self._followed = Followed(path, settings=settings)
        self._log = structlog.get_logger("notifier.worker")

    @property
    def version(self) -> str:
        return self._followed.settings.rates_version

    @property
    def problem(self) -> str:
        """The fault of the latest rates, in one line; '' if the worker follows them."""
        return self._followed.problem.partition("\n")[0]

    @property
    def published(self) -> bytes:
        """The version of the rates that it last found published."""
        return self._followed.published.version.encode()

    async def begin(self) -> Settings:
        """Return the settings to begin with: those of the file, with the published rates if there are any."""
        published, field = await self._in_force()
        if published.version:
            await self._load((), published, field)
        return self._followed.settings

    async def changed(self) -> Policies | None:
        """Return new rates, if there are any. Rates that cannot be used are logged, and the old ones stay in force."""
        seen = await asyncio.to_thread(self._followed.fingerprint)
        if not self._followed.is_settled(seen):
            return None
        try:
            published = await self._ask()
        except RedisError:  # the file still counts, unless rates were published
            published = self._followed.published
        if not self._followed.is_changed(seen, published):
            return None
        if published.version and await self._left_s(published) > EARLY_S:  # who waited for them would look dead
            return None
        before, followed = self._followed.settings, (self.version, self.problem)
        was_file = not self._followed.published.version
        policies = await self._load(seen, published)
        if policies is None or followed == (self.version, ""):
            return None
        self._log.info("config_taken_up", source=self._source, version=self.version)
        if was_file and not published.version and before.rates_version != self.version:
            with contextlib.suppress(RedisError):
                await self._record(before, seen)
        return policies

    async def _record(self, before: Settings, seen: Seen) -> None:
        """Write a change of the file into the log of actions, once for all workers of a host."""
        host = socket.gethostname()
        if await self._any(lambda at: at.set(redis_key("reload", f"{hash(seen):x}", host), "1", nx=True, ex=ONCE_S)):
            change = await asyncio.to_thread(change_to, before.rates, self._followed.settings.rates)
            text = "; ".join([str(self._followed.path), *change.lines])
            entry = action_entry("the file", host, "change rates", f"{before.rates_version} to {self.version}", text)
            await self._any(lambda at: at.xadd(redis_key("actions"), entry, maxlen=KEPT, approximate=True))

    def told(self) -> dict[Any, str]:
        """Return the fields by which this worker shows its rates in Redis; see `notifier.store.published`."""
        return {VERSION: self.version, SOURCE: self._source, PROBLEM: self.problem}

    @property
    def _source(self) -> str:
        return "redis" if self._followed.published.version else str(self._followed.path)

    async def _any(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Ask the partitions until one answers, as `Partitions.ask_any`; raise RedisError if none does."""
        *others, last = self._at
        for at in others:
            with contextlib.suppress(RedisError), under(at.prefixes):
                return await question(at.client)
        with under(last.prefixes):
            return await question(last.client)

    async def _ask(self) -> Published:
        return decode(*await self._any(lambda at: at.hmget(redis_key("rates"), "version", "at")))

    async def _in_force(self) -> tuple[Published, str]:
        """Return the rates in force, and their field: until published rates begin, `before` holds the earlier ones."""
        published = await self._ask()
        if await self._left_s(published) <= 0:
            return published, "rates"
        others = await self._any(lambda at: at.hget(redis_key("rates"), "before"))
        return Published("before" if others else ""), "before"

    async def _load(self, seen: Seen, published: Published, field: str = "rates") -> Policies | None:
        """Take up the rates. seen: the file's fingerprint; a file that changes while it is read has to wait."""
        applied = await self._any(lambda at: at.hget(redis_key("rates"), field)) if published.version else None
        self._followed.note(seen, published)
        try:
            settings, policies = await asyncio.to_thread(read, self._followed.path, applied)
            if seen and await asyncio.to_thread(self._followed.fingerprint) != seen:
                self._followed.note((), published)
                return None
            if applied is None:
                self._check_whole(settings)
            elif field == "rates" and not await self._begins(published):
                return await self._load(seen, *await self._in_force())
        except RedisError:
            self._followed.note((), published)
            raise
        except SettingsError as error:
            self._followed.refuse(error)
            if self._followed.is_news:
                self._log.error("config_refused", problems=str(error).splitlines())
            return None
        self._followed.use(settings)
        return policies

    def _check_whole(self, settings: Settings) -> None:
        """Raise SettingsError for a file that lacks the section `user`, if the rules in force limit every user."""
        if not self._followed.settings.user.policy().is_empty and "user" not in settings.model_fields_set:
            raise SettingsError(
                f"{self._followed.path}: the section user is missing, but the rules in force have one. Is the file"
                " complete? If there is to be no limit, write user: {}"
            )

    async def _begins(self, published: Published) -> bool:
        """Wait until these rates begin; False if somebody withdraws or replaces them before."""
        while True:
            left_s = await self._left_s(published)
            if await self._ask() != published:
                return False
            if left_s <= 0:
                return True
            await asyncio.sleep(min(left_s, LOOK_S))

    async def _left_s(self, published: Published) -> float:
        """Return how long until they begin, by Redis's clock, so that every host changes at the same moment."""
        now_us = clock_us(await self._any(lambda at: at.time()))
        return (published.at_us - now_us) / 1e6 if published.begins_later(now_us) else 0.0


def read(path: Path, applied: bytes | None = None) -> tuple[Settings, Policies]:
    """Read the file, without stopping other threads for long. Raise SettingsError if it cannot be used.

    applied: published rates, which replace the file's.
    """
    # The collector would stop the event loop's thread, too: a fifth of a second for the users of a large file, none of
    # them garbage. They stay, so it need not visit them later either.
    gc.disable()
    try:
        settings = load_settings(path, rates=None if applied is None else read_rates(applied))
        policies = settings.policies()
        own_rules_of(policies)  # computed in this thread, before the event loop needs it
        gc.freeze()
    finally:
        gc.enable()
    return settings, policies
