"""Mending: what a worker does about content of Redis that its scripts cannot read, so that nothing ends it.

A script that fails is run once more by a version of it that tells which keys it touched, the last first. Of these, and
of the keys that every call reads, each that is not of its type is set aside whole, and each score that is no time is
made now. If nothing looks wrong and the script fails again, what it touched last is set aside: one key at each failure.
A script that failed may have taken a job out of one place and not put it into the next: when none has failed for some
seconds, the worker audits all that is kept, and repairs it. A mark in Redis, which goes after that, tells it to workers
that start later: this one may have been killed.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import uuid4

import structlog
from redis.exceptions import RedisError, ResponseError

from notifier.operations.access import commands_of_scripts
from notifier.queue.leaders import joined
from notifier.scripts.key_types import OF_RQ, name_of, types_of
from notifier.scripts.keys import CATALOGUE, redis_key, rq_key
from notifier.scripts.loader import Call, failed_call, run_async, script
from notifier.texts import readable

MAX_KEYS: Final = 60
MAX_SCORE: Final = 2**53  # beyond it, Lua's numbers are not exact
MAX_SEQ: Final = 2**49  # see HIGH in arrivals.lua
MAX_KNOWN: Final = 200
MAX_MEMBERS: Final = 1_000
KEPT_S: Final = 7 * 86_400
QUIET_S: Final = 3.0
# What waits, what is in flight and what was sent stands there: its numbers are mended, and while it has its type it is
# never set aside whole. Without what was sent a user would be burst.
PRECIOUS: Final = frozenset({"backlog", "later", "leases", "sent", "seq", "wakeups"})
_CALL: Final = re.compile(r"\bredis\.(p?call)\b")
_TRACE: Final = """
local touched = {}
for _, name in ipairs({'call', 'pcall'}) do
  ARGV[name] = function(command, ...)
    touched[#touched + 1] = (...)
    return redis[name](command, ...)
  end
end
local ok = pcall(function()
%s
end)
local last = {}
for i = #touched, math.max(1, #touched - MAX_KEYS), -1 do last[#last + 1] = touched[i] end
return ok and {} or last
""".replace("MAX_KEYS", str(MAX_KEYS))


class Mender:
    """Mends what the errors of one worker tell of."""

    def __init__(self, redis: Any, worker: str, lanes: Sequence[str]) -> None:
        self._redis = redis
        self._fixed = [*_fixed_keys(lanes), rq_key("worker", worker).encode()]
        self._seen: Counter[str] = Counter()
        self._failed_at: float | None = None
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)

    async def take_over(self) -> None:
        """See to what a worker has left that ended in the middle of it. Raise ResponseError if this one would, too."""
        await run_async(self._redis, Call(script("rights"), [], commands_of_scripts(), bool))
        if await self._redis.exists(redis_key("halfway")):
            self.note_failed()

    async def mark(self) -> None:
        """Tell workers that start later that a script has failed, until a repair that begins after this is done."""
        with contextlib.suppress(RedisError):
            await self._redis.sadd(redis_key("halfway"), uuid4().hex)

    def note_failed(self) -> None:
        self._failed_at = time.monotonic()

    async def mend(self, error: Exception) -> None:
        """Find what the error came of, and set it right or aside; where Redis is away, the next time."""
        await self.mark()  # this worker may be killed before it repairs; another's repair may have passed the place
        self.note_failed()
        with contextlib.suppress(RedisError):
            await self._find(error)

    def is_over(self) -> bool:
        """Whether a script has failed, and none for some seconds; told once."""
        over = self._failed_at is not None and time.monotonic() - self._failed_at > QUIET_S
        if over:
            self._failed_at = None
        return over

    async def _find(self, error: Exception) -> None:
        what = readable(f"{type(error).__name__}: {error}")
        if len(self._seen) > MAX_KNOWN:
            self._seen.clear()
        self._seen[what] += 1
        touched = await self._touched(failed_call(error))
        mended = [key for key in dict.fromkeys([*touched, *self._fixed]) if await self._mend(key)]
        if not mended and self._seen[what] > 1:
            loose = [key for key in dict.fromkeys(touched) if name_of(key) in CATALOGUE.keys() - PRECIOUS]
            for key in loose:  # the first of them that is there
                if await self._set_aside(key, "a script fails on it"):
                    break
        if self._seen[what] == 1:
            at = readable(repr(touched[0])) if touched else ""
            self._log.error("unreadable", reason=what, at=at, exc_info=None if touched else error)

    async def _touched(self, call: Call[Any] | None) -> list[bytes]:
        """The keys that a failing call touches, the last first. The call is made once more for it."""
        if call is None:
            return []
        source = _TRACE % _CALL.sub(r"ARGV.\1", call.script.source)
        try:
            found = await self._redis.eval(source, *call.words())
        except ResponseError:  # it touches more than this version may
            return []
        return [key for key in found if isinstance(key, bytes)]

    async def _mend(self, key: bytes) -> bool:
        types = types_of(key)
        if types is None:
            return False
        found = (await self._redis.type(key)).decode()
        if found == "none":
            return False
        if found not in types:
            return await self._set_aside(key, f"it is a {found}, not a {' or '.join(sorted(types))}")
        if found == "zset" and name_of(key) != "wip":  # RQ fails what it finds expired there, so it stands far ahead
            return await self._mend_scores(key)
        if found in {"set", "hash"} and key in self._fixed:
            return await self._mend_members(key, found)
        return key == redis_key("seq").encode() and await self._mend_counter(key)

    async def _mend_scores(self, key: bytes) -> bool:
        """Let what has a time that no clock shows be due now."""
        odd = [
            *await self._redis.zrangebyscore(key, f"({MAX_SCORE}", "+inf", start=0, num=MAX_MEMBERS),
            *await self._redis.zrangebyscore(key, "-inf", f"({-MAX_SCORE}", start=0, num=MAX_MEMBERS),
        ]
        if not odd:
            return False
        seconds, us = await self._redis.time()
        now = seconds if name_of(key) in OF_RQ else seconds * 1_000_000 + us
        await self._redis.zadd(key, dict.fromkeys(odd, now), xx=True)
        self._log.error("mended", at=readable(repr(key)), reason=f"{len(odd)} scores are no times")
        return True

    async def _mend_members(self, key: bytes, found: str) -> bool:
        """Remove what is no text: no name of ours is."""
        is_set = found == "set"
        _, members = await (self._redis.sscan if is_set else self._redis.hscan)(key, count=MAX_MEMBERS)
        odd = [member for member in members if member.decode(errors="ignore").encode() != member]
        if not odd:
            return False
        await (self._redis.srem if is_set else self._redis.hdel)(key, *odd)
        self._log.error("mended", at=readable(repr(key)), reason=f"{len(odd)} of its members are no text")
        return True

    async def _mend_counter(self, key: bytes) -> bool:
        value = await self._redis.get(key)
        if value.isdigit() and len(value) < 20 and int(value) < MAX_SEQ:  # noqa: PLR2004 - digits of a number of 64 bits
            return False
        seconds, us = await self._redis.time()
        await self._redis.set(key, seconds * 1000 + us // 1000)  # more than were ever counted
        self._log.error("mended", at=readable(repr(key)), reason="it is no counter")
        return True

    async def _set_aside(self, key: bytes, why: str) -> bool:
        """Keep it whole, under another name, for a time."""
        aside = redis_key("quarantine", "").encode() + key
        try:
            await self._redis.rename(key, aside)
        except ResponseError:  # it has gone, or lies on another server of a cluster
            return False
        await self._redis.expire(aside, KEPT_S)
        self._log.error("quarantined", at=readable(repr(key)), reason=why, kept=readable(repr(aside)))
        return True


def _fixed_keys(lanes: Sequence[str]) -> Iterable[bytes]:
    """The keys that belong to no user, job or route."""
    together = joined(lanes)
    for name in CATALOGUE:
        for rest in ((), *((lane,) for lane in lanes), (together,)):
            yield redis_key(name, *rest).encode()
    for name in OF_RQ:
        yield from (rq_key(name, *rest).encode() for rest in ((), *((lane,) for lane in lanes)))
