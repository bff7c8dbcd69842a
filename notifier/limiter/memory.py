"""MemoryLimiter: the whole of `Limiter` in this process, without Redis, for tests and programs of one process."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.memory_sends import MemorySends
from notifier.limiter.protocol import Hold, Permit, describe
from notifier.limiter.rates import Limits
from notifier.limiter.requests import (
    HOUR_S,
    MINUTE_US,
    By,
    Mode,
    Request,
    Requests,
    ahead_us,
    check_key,
    in_steps,
    ranks_by,
)
from notifier.limiter.sync import KeyLimiter
from notifier.rules.policy import Policy
from notifier.units import duration_us

MINUTES: Final[Mapping[str, int]] = {"1m": 1, "1h": 60, "1d": 1440}


@dataclass(slots=True)
class Use:
    """How a key has been used. minutes: how many in each minute since the epoch."""

    total: int = 0
    held: int = 0
    first_us: int | None = None
    last_us: int | None = None
    asked_us: int = 0
    minutes: Counter[int] = field(default_factory=Counter)

    def in_last(self, minutes: int, now: int) -> int:
        """How many in so many minutes, the one of `now` included."""
        this = now // MINUTE_US
        return sum(self.minutes.get(minute, 0) for minute in range(this - minutes + 1, this + 1))

    def rank(self, by: By, now: int) -> int:
        """The number that `top` orders keys by; 0 leaves a key out."""
        if by == "rate":
            return self.in_last(60, now)
        return {"total": self.total, "held": self.held, "last_used": self.asked_us}[by]


class MemoryLimiter(KeyLimiter):
    """A limiter in this process, safe for its threads; it gives the answers of `Limiter`.

    clock: µs since the epoch, this machine's if none is given. limits: policies by name. usage_keep: how long the use
    of a key is known after its last; None counts no usage.
    """

    def __init__(
        self,
        clock: Callable[[], int] | None = None,
        *,
        limits: Limits | None = None,
        usage_keep: str | timedelta | None = None,
    ) -> None:
        self._sends = MemorySends(clock)
        self._keep_us = None if usage_keep is None else duration_us(usage_keep)
        self._requests = Requests("memory", limits=limits, usage_keep=usage_keep)
        self._use: dict[str, Use] = {}
        self._all: Counter[int] = Counter()

    def _ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None
    ) -> list[Permit | Hold]:
        with self._sends.lock:
            return [self._ask_one(request, mode, ahead_us(ahead)) for request in requests]

    def _ask_one(self, request: Request, mode: Mode, ahead: int) -> Permit | Hold:
        now, key, policy = self._sends.clock(), request.key, request.policy
        at, rule = (0, -1) if mode == "add" else self._sends.next_for(key, None, policy, request.cost)
        at = max(at, now)
        admitted = at - now <= ahead
        if mode != "look":
            self._note(request, now, admitted=admitted)
        if not admitted:
            return Hold(at - now, describe("", policy, rule).strip(), policy=policy, key=key)
        permit = self._sends.new_permit()
        if mode != "look":
            self._sends.take_for_key(key, policy, permit, at, now, cost=request.cost)
        remaining, more_at, narrowest = self._room(key, policy, at)
        after = None if more_at is None else max(0, more_at - now)
        return Permit(permit, key, None, request.cost, at, remaining, after, at - now, narrowest)

    def _room(self, key: str, policy: Policy, at: int) -> tuple[int | None, int | None, str]:
        narrowest: tuple[int | None, int | None, str] = (None, None, "")
        for window in policy.windows:
            count, first = self._sends.in_window(key, at - window.interval_us)
            left = max(0, window.limit - count)
            if narrowest[0] is None or left < narrowest[0]:
                narrowest = left, at if first is None else first + window.interval_us, str(window)
        return narrowest

    def refund(self, permit: Permit) -> bool:
        """See `KeyLimiter.refund`."""
        return self._sends.close(permit.key, None, permit.id, None)

    def reset(self, key: str) -> int:
        """See `KeyLimiter.reset`."""
        check_key(key)
        with self._sends.lock:
            self._use.pop(key, None)
            return self._sends.reset(key)

    def count(self, key: str, *, last: str | timedelta) -> int:
        """See `KeyLimiter.count`."""
        check_key(key)
        span = duration_us(last)
        with self._sends.lock:
            now = self._sends.clock()
            return self._sends.in_window(key, now - span, now)[0]

    def usage(self, key: str) -> Usage:
        """See `KeyLimiter.usage`."""
        check_key(key)
        self._requests.need_usage()
        with self._sends.lock:
            now = self._sends.clock()
            self._forget_idle(now)
            use = self._use.get(key, Use())
            rates = {name: use.in_last(span, now) / (span * 60) for name, span in MINUTES.items()}
            return Usage(key, use.total, use.held, use.first_us, use.last_us, rates)

    def top(self, count: int = 10, *, by: By = "total", ascending: bool = False) -> list[RankedKey]:
        """See `KeyLimiter.top`."""
        ranks_by(by, count)
        self._requests.need_usage()
        with self._sends.lock:
            now = self._sends.clock()
            self._forget_idle(now)
            ranks = ((use.rank(by, now), key.encode(errors="surrogatepass"), key) for key, use in self._use.items())
            pick = heapq.nsmallest if ascending else heapq.nlargest
            return [self._ranked(key, now) for _, _, key in pick(count, (rank for rank in ranks if rank[0]))]

    def series(
        self, key: str | None = None, *, last: str | timedelta = "1h", step: str | timedelta = "1m"
    ) -> list[Point]:
        """See `KeyLimiter.series`."""
        self._requests.need_usage()
        with self._sends.lock:
            now = self._sends.clock()
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
        # The dict stays in the order of the last request, so the idle stand first.
        use = self._use[request.key] = self._use.pop(request.key, Use())
        use.asked_us = now
        if not admitted:
            use.held += 1
            return
        use.total += request.cost
        use.first_us = now if use.first_us is None else use.first_us
        use.last_us = now
        minute = now // MINUTE_US
        for counts in (use.minutes, self._all):
            if minute not in counts:
                _forget_minutes(counts, now - self._keep_us)
            counts[minute] += request.cost

    def _forget_idle(self, now: int) -> None:
        before = now - (self._keep_us or 0)
        while self._use and self._use[key := next(iter(self._use))].asked_us <= before:
            del self._use[key]


def _forget_minutes(counts: Counter[int], before_us: int) -> None:
    for minute in [minute for minute in counts if minute * MINUTE_US < before_us]:
        del counts[minute]
