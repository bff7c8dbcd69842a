"""Mending: how a worker survives content of Redis that its scripts cannot read.

When a script fails, the mender runs a version of it that returns the keys it touched, the latest first. Of these, and
of the keys that every call reads, the mender sets each key of a wrong type aside and replaces each score that is no
time by the current time. If it finds nothing wrong and the script fails again, it sets aside the key touched last, one
key at each failure. A failed script may have taken a job out of one place without putting it into the next: so once no
script has failed for some seconds, the worker audits all of Redis and repairs it. A mark in Redis lasts until then: if
this worker is killed, one that starts later repairs.
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
# These keys hold what waits, what is in flight and what was sent. The mender corrects their numbers, but never sets one
# of the right type aside: without the record of the sends, a user would get too many.
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
    """Mends the keys that make one worker's scripts fail."""

    def __init__(self, redis: Any, worker: str, lanes: Sequence[str]) -> None:
        self._redis = redis
        self._fixed = [*_fixed_keys(lanes), rq_key("worker", worker).encode()]
        self._seen: Counter[str] = Counter()
        self._failed_at: float | None = None
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)

    async def take_over(self) -> None:
        """Plan a repair that a worker did not finish. Raise ResponseError if Redis refuses a command of the scripts."""
        await run_async(self._redis, Call(script("rights"), [], commands_of_scripts(), bool))
        if await self._redis.exists(redis_key("halfway")):
            self.note_failed()

    async def mark(self) -> None:
        """Leave a mark that a script has failed. Only a repair that begins later removes it."""
        with contextlib.suppress(RedisError):
            await self._redis.sadd(redis_key("halfway"), uuid4().hex)

    def note_failed(self) -> None:
        self._failed_at = time.monotonic()

    async def mend(self, error: Exception) -> None:
        """Find the key that caused the error, and correct it or set it aside. If Redis is away, do nothing."""
        await self.mark()  # this worker may be killed before it repairs; a repair under way may have passed the key
        self.note_failed()
        with contextlib.suppress(RedisError):
            await self._find(error)

    def is_over(self) -> bool:
        """Whether scripts have failed, but none for some seconds. True once, until the next failure."""
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
            for key in loose:  # sets aside the first that exists
                if await self._set_aside(key, "a script fails on it"):
                    break
        if self._seen[what] == 1:
            at = readable(repr(touched[0])) if touched else ""
            self._log.error("unreadable", reason=what, at=at, exc_info=None if touched else error)

    async def _touched(self, call: Call[Any] | None) -> list[bytes]:
        """Make a failing call once more; return the keys that it touches, the latest first."""
        if call is None:
            return []
        source = _TRACE % _CALL.sub(r"ARGV.\1", call.script.source)
        try:
            found = await self._redis.eval(source, *call.words())
        except ResponseError:  # Redis does not run this version
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
        if found == "zset" and name_of(key) != "wip":  # its scores are far ahead, as RQ fails a job whose score is past
            return await self._mend_scores(key)
        if found in {"set", "hash"} and key in self._fixed:
            return await self._mend_members(key, found)
        return key == redis_key("seq").encode() and await self._mend_counter(key)

    async def _mend_scores(self, key: bytes) -> bool:
        """Replace each score that can be no time by the current time."""
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
        """Remove members that are not UTF-8: none of ours is."""
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
        await self._redis.set(key, seconds * 1000 + us // 1000)  # higher than any count so far
        self._log.error("mended", at=readable(repr(key)), reason="it is no counter")
        return True

    async def _set_aside(self, key: bytes, why: str) -> bool:
        """Rename the key, and keep it for KEPT_S."""
        aside = redis_key("quarantine", "").encode() + key
        try:
            await self._redis.rename(key, aside)
        except ResponseError:  # the key is gone, or is on another server of a cluster
            return False
        await self._redis.expire(aside, KEPT_S)
        self._log.error("quarantined", at=readable(repr(key)), reason=why, kept=readable(repr(aside)))
        return True


def _fixed_keys(lanes: Sequence[str]) -> Iterable[bytes]:
    """Yield the keys that belong to no user, job or route."""
    together = joined(lanes)
    for name in CATALOGUE:
        for rest in ((), *((lane,) for lane in lanes), (together,)):
            yield redis_key(name, *rest).encode()
    for name in OF_RQ:
        yield from (rq_key(name, *rest).encode() for rest in ((), *((lane,) for lane in lanes)))
