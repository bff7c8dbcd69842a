"""MemoryLimiter: `Limiter` in this process, without Redis: for tests, and for programs of one process."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Final, TypeVar

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.base import Asking, KeyLimiter
from notifier.limiter.memory_keys import KeySends
from notifier.limiter.plans import StaleError
from notifier.limiter.protocol import BLOCK, Hold, Permit
from notifier.limiter.rates import Limits
from notifier.limiter.requests import (
    HOUR_S,
    MINUTE_US,
    By,
    Mode,
    Request,
    Requests,
    Timeout,
    Use,
    ahead_us,
    check_key,
    check_used,
    in_steps,
    ranks_by,
)
from notifier.rules.zones import DEFAULT_ZONE
from notifier.units import duration_us

T = TypeVar("T")
SWEEP_AT: Final = 1024
SWEPT: Final = 4
_STARTED_US: Final = (time.time_ns() - time.monotonic_ns()) // 1000


def steady_clock() -> int:
    """µs since the epoch. If somebody sets this machine's clock while the process runs, this clock does not jump."""
    return _STARTED_US + time.monotonic_ns() // 1000


class MemoryKeys:
    """All keys of a limiter in memory, safe for threads. The arguments are those of `MemoryLimiter`."""

    def __init__(self, clock: Callable[[], int] | None = None, **options: Any) -> None:
        self._clock = clock or steady_clock
        self._lock = threading.Lock()
        self._keys: dict[str, KeySends] = {}
        self._turns: deque[str] = deque()  # each key once, in the order in which `_add` checks them
        self.requests = Requests("memory", **options)
        self._keep_us = self.requests.keep_us
        self._permits = count(1)
        self._use: dict[str, Use] = {}
        self._all: Counter[int] = Counter()

    def ask(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        ahead = 0 if ahead == 0 else ahead_us(ahead)
        with self._lock:
            now = self._clock()
            if mode != "every":
                return [self._ask_one(request, mode, ahead, now) for request in requests]
            answers = [self._ask_one(request, "every", 0, now) for request in requests]
            if not any(isinstance(answer, Hold) for answer in answers):
                return [self._ask_one(request, "take", 0, now) for request in requests]
            for request, answer in zip(requests, answers, strict=True):
                if isinstance(answer, Hold):
                    self._note(request, now, admitted=False)
            return answers

    def _ask_one(self, request: Request, mode: Mode, ahead: int, now: int) -> Permit | Hold:
        key, plan = request.key, request.plan
        sends = self._keys.get(key) or KeySends()
        try:
            opens = sends.opens(plan, now)
        except StaleError as stale:
            return self._ask_one(self.requests.renewed([request], stale)[0], mode, ahead, now)
        at, rule = (0, -1) if mode == "add" else opens
        place = sends.place_for(plan, at, now) if at > now and rule != BLOCK else None
        at = max(at if place is None else place, now)
        takes = mode in {"take", "add"}
        if self._keep_us is not None and takes:
            self._note(request, now, admitted=at - now <= ahead)
        if at - now > ahead:
            if mode != "look":
                sends.refuse(plan, at, now)
            return Hold(at - now, plan.reasons[rule], plan.policy, key)
        permit = next(self._permits)
        if takes:
            sends.take(plan, permit, at, now, place)
            if key not in self._keys:
                self._add(key, sends, now)
        remaining, more, narrowest = sends.room(plan, at, now)
        return Permit(f"{at}-{permit}", key, plan.cost, at, remaining, more, at - now, plan.reasons[narrowest])

    def _add(self, key: str, sends: KeySends, now: int) -> None:
        """Add a key. Delete keys whose sends no rule needs any more: a few at each call, so that no call is slow."""
        for _ in range(SWEPT if len(self._turns) > SWEEP_AT else 0):
            first = self._turns.popleft()
            if self._keys[first].until_us + self._keys[first].shorter_us > now:
                self._turns.append(first)
            else:
                del self._keys[first]
        self._keys[key] = sends
        self._turns.append(key)

    def adjust(self, permit: Permit, used: int) -> bool:
        check_used(used)
        at, _, end = permit.id.partition("-")
        with self._lock:
            sends = self._keys.get(permit.key) if end.isdecimal() else None
            return sends is not None and sends.change(int(at), int(end), used, self._clock()) is not None

    def block(self, key: str, for_: str | timedelta) -> None:
        check_key(key)
        with self._lock:
            if (sends := self._keys.get(key)) is None:
                self._add(key, sends := KeySends(), self._clock())
            sends.block(duration_us(for_), self._clock())

    def reward(self, key: str, cost: int = 1) -> int:
        check_key(key)
        check_used(cost)
        with self._lock:
            sends = self._keys.get(key)
            return 0 if sends is None else sends.reward(cost, self._clock())

    def reset(self, key: str) -> int:
        check_key(key)
        with self._lock:
            self._use.pop(key, None)
            if (sends := self._keys.get(key)) is None:
                return 0
            self._keys[key] = KeySends()  # `_add` deletes it later
            return sends.after(self._clock() - sends.horizon_us)

    def count(self, key: str, *, last: str | timedelta) -> int:
        check_key(key)
        span = duration_us(last)
        with self._lock:
            now, sends = self._clock(), self._keys.get(key, KeySends())
            return sends.after(now - min(span, sends.horizon_us)) - sends.after(now)

    def usage(self, key: str) -> Usage:
        check_key(key)
        self.requests.need_usage()
        with self._lock:
            now = self._clock()
            self._forget_idle(now)
            return self._use.get(key, Use()).told(key, now)

    def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        ranks_by(by, count)
        self.requests.need_usage()
        with self._lock:
            now = self._clock()
            self._forget_idle(now)
            ranks = ((use.rank(by, now), key.encode(errors="surrogatepass"), key) for key, use in self._use.items())
            pick = heapq.nsmallest if ascending else heapq.nlargest
            return [self._ranked(key, now) for _, _, key in pick(count, (rank for rank in ranks if rank[0]))]

    def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        self.requests.need_usage()
        with self._lock:
            now = self._clock()
            self._forget_idle(now)
            minutes = self._all if key is None else self._use.get(key, Use()).minutes
            return in_steps(now, minutes, last, step)

    def _ranked(self, key: str, now: int) -> RankedKey:
        use = self._use[key]
        return RankedKey(key, use.total, use.last_us or 0, use.held, use.in_last(60, now) / HOUR_S)

    def _note(self, request: Request, now: int, *, admitted: bool) -> None:
        if self._keep_us is None:
            return
        self._forget_idle(now)
        # The dict stays in the order of the last request, so idle keys come first.
        use = self._use[request.key] = self._use.pop(request.key, Use())
        use.asked_us = now
        if not admitted:
            use.held += 1
            return
        use.total += request.plan.cost
        use.first_us = now if use.first_us is None else use.first_us
        use.last_us = now
        minute = now // MINUTE_US
        for counts in (use.minutes, self._all):
            if minute not in counts:
                _forget_minutes(counts, now - self._keep_us)
            counts[minute] += request.plan.cost

    def _forget_idle(self, now: int) -> None:
        before = now - (self._keep_us or 0)
        while self._use and self._use[key := next(iter(self._use))].asked_us <= before:
            del self._use[key]


class InMemory(Asking):
    """The parts that `MemoryLimiter` and `AsyncMemoryLimiter` share."""

    def __init__(
        self,
        clock: Callable[[], int] | None = None,
        *,
        limits: Limits | None = None,
        usage_keep: str | timedelta | None = None,
        zone: str = DEFAULT_ZONE,
    ) -> None:
        self._keys = MemoryKeys(clock, limits=limits, usage_keep=usage_keep, zone=zone)
        self._requests = self._keys.requests


class MemoryLimiter(InMemory, KeyLimiter):
    """A limiter in this process, safe for its threads, with the answers of `Limiter`.

    clock: returns µs since the epoch; by default this machine's clock. limits: rates by name. usage_keep: how long
    usage is kept after a key's last use; None counts no usage.
    """

    def _ask(self, requests: Sequence[Request], mode: Mode, ahead: Timeout) -> list[Permit | Hold]:
        return self._keys.ask(requests, mode, ahead)

    def _run(self, call: Callable[[Any], T]) -> T:
        return call(self._keys)


def _forget_minutes(counts: Counter[int], before_us: int) -> None:
    for minute in [minute for minute in counts if minute * MINUTE_US < before_us]:
        del counts[minute]
