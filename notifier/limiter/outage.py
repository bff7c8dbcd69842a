"""A limiter's answers while Redis cannot be asked, and when it asks again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from notifier.errors import LimiterUnreachableError
from notifier.limiter.memory import MemoryLimiter
from notifier.limiter.protocol import UNREACHABLE, Hold, Permit
from notifier.limiter.requests import Mode, Request, Timeout, ahead_us
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.policy import Burst, Policy, Window

OnError: TypeAlias = Literal["raise", "hold", "permit", "memory"]
RETRY_US: Final = 1_000_000  # what a Hold says where nobody knows
FIRST_S, LONGEST_S = 0.05, 1.0  # between two calls that try whether Redis is back
TO_ALL: Final = re.compile("(?:^|: -)(?!WRONGTYPE)[A-Z]+ ")  # as Redis 7 and 6.2 say MISCONF, if redis-py has no type
IN_MEMORY: Final = "m"  # begins the ids of permits that this process gave by itself


class Breaker:
    """Lets one call in a while try a Redis that has failed; the others are answered at once. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may ask in the middle
        self._wait_s = 0.0
        self._tries_at = 0.0

    def lets_through(self) -> bool:
        """Whether this call asks Redis."""
        if not self._wait_s:
            return True
        with self._lock:
            if time.monotonic() < self._tries_at:
                return False
            self._wait_s = min(LONGEST_S, 2 * self._wait_s)  # by who tries: many calls may fail in one blip
            self._tries_at = time.monotonic() + self._wait_s
            return True

    def failed(self) -> None:
        with self._lock:
            self._wait_s = self._wait_s or FIRST_S
            self._tries_at = time.monotonic() + self._wait_s

    def worked(self) -> None:
        if self._wait_s:
            self._wait_s = 0.0


class Outage:
    """Answers in the place of Redis, as `on_error` says.

    processes: with "memory" each process admits its share of every limit, so that all of them together admit no more in
    the long run. What a process admitted before, Redis knows alone.
    """

    def __init__(self, on_error: OnError, processes: int, zone: str) -> None:
        if on_error not in {"raise", "hold", "permit", "memory"}:
            raise ValueError(f"on_error is raise, hold, permit or memory, not {on_error!r}")
        if type(processes) is not int or processes < 1:
            raise ValueError(f"processes is how many share the rates, from 1, not {processes!r}")
        self.on_error = on_error
        self._breakers: dict[str, Breaker] = {}
        self.memory = MemoryLimiter(zone=zone)
        self._processes = processes

    def breaker(self, node: str) -> Breaker:
        """The one of a node: the others of its cluster may be well."""
        return self._breakers.get(node) or self._breakers.setdefault(node, Breaker())

    def answers(
        self, requests: Sequence[Request], mode: Mode, ahead: Timeout, error: Exception | None = None
    ) -> list[Permit | Hold]:
        if self.on_error == "raise" or (self.on_error == "hold" and mode == "add"):  # which is never held
            raise unreachable(error or ConnectionError("it did not answer a moment ago")) from error
        if self.on_error == "hold":
            return [Hold(RETRY_US, UNREACHABLE, policy=request.plan.policy, key=request.key) for request in requests]
        if self.on_error == "permit":
            return [Permit("", request.key, request.plan.cost, time.time_ns() // 1000) for request in requests]
        answers = self.memory._ask([self._share(request) for request in requests], mode, ahead)  # noqa: SLF001
        return [
            replace(answer, id=f"{IN_MEMORY}{answer.id}")
            if isinstance(answer, Permit)
            else replace(answer, policy=request.plan.policy)
            for answer, request in zip(answers, requests, strict=True)
        ]

    @staticmethod
    def own(permit: Permit) -> Permit | None:
        """A permit that this process gave by itself, as its memory knows it; None for another."""
        return replace(permit, id=permit.id[len(IN_MEMORY) :]) if permit.id.startswith(IN_MEMORY) else None

    def _share(self, request: Request) -> Request:
        """The same by this process's part of the rates, whose rules have the names of the whole."""
        plan = request.plan
        policy = share_of(plan.policy, self._processes, plan.cost)
        share = self.memory._requests.request(request.key, policy, plan.cost)  # noqa: SLF001
        return replace(share, plan=replace(share.plan, reasons=plan.reasons))


def share_of(policy: Policy, processes: int, cost: int = 1) -> Policy:
    """Return what one of so many processes may admit, so that all of them keep the policy.

    cost: that it must admit at once. A calendar's windows cannot be longer: by them all may admit as much at once.
    """
    windows = []
    for window in policy.windows:
        # Where its part is less than the cost, each process admits that, and as much more seldom.
        limit = max(cost, window.limit // processes)
        stretch = -(-limit * processes // window.limit)
        windows.append(Window(limit, interval_us=window.interval_us * stretch))
    burst = policy.burst
    if burst is not None:
        burst = Burst(max(cost, burst.limit // processes), every_us=burst.every_us * processes)
    dates = tuple(CalendarWindow(max(cost, window.limit // processes), window.unit) for window in policy.calendar)
    return replace(policy, windows=tuple(windows), calendar=dates, gap_us=policy.gap_us * processes, burst=burst)


def is_of_its_keys(error: Exception) -> bool:
    """Whether others can be asked: a script failed at its own keys, or their slot moves, of which redis-py tells so.

    What concerns all begins with a word.
    """
    said, kind = str(error), type(error).__name__
    return kind == "ClusterError" or (kind == "ResponseError" and "user_script" in said and not TO_ALL.search(said))


def seconds_of(timeout: str | timedelta | float) -> float:
    """A time-out in seconds; raises ValueError for one that is over at once."""
    seconds = ahead_us(timeout) / 1e6
    if not seconds:
        raise ValueError(f"timeout must be longer than {timeout!r}")
    return seconds


def unreachable(error: Exception) -> LimiterUnreachableError:
    of_cluster = "it is a node of a cluster: give a RedisCluster, or a URL redis+cluster://host:6379"
    said = of_cluster if type(error).__name__ == "MovedError" else error
    return LimiterUnreachableError(f"Redis cannot be used by the limiter: {said}")
