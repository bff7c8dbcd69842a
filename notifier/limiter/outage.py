"""A limiter's answers while Redis cannot be asked, and when a call tries Redis again."""

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
RETRY_US: Final = 1_000_000  # the time left of a Hold while Redis cannot say it
FIRST_S, LONGEST_S = 0.05, 1.0  # between two calls that try whether Redis is back
TO_ALL: Final = re.compile("(?:^|: -)(?!WRONGTYPE)[A-Z]+ ")  # such as MISCONF, as Redis 7 and 6.2 write it
IN_MEMORY: Final = "m"  # begins the ids of permits that this process gave without Redis


class Breaker:
    """A circuit breaker: after a failure one call in a while tries Redis; no other call waits. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may ask while its thread has the lock
        self._wait_s = 0.0
        self._tries_at = 0.0

    def lets_through(self) -> bool:
        """Whether this call asks Redis."""
        if not self._wait_s:
            return True
        with self._lock:
            if time.monotonic() < self._tries_at:
                return False
            self._wait_s = min(LONGEST_S, 2 * self._wait_s)  # here, not in `failed`: many calls may fail at once
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

    processes: with "memory" each process admits its share of every limit, so that in the long run all of them together
    keep the limits. The sends from before the outage do not count: only Redis has them.
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
        """The breaker of one node: the other nodes of the cluster may work."""
        return self._breakers.get(node) or self._breakers.setdefault(node, Breaker())

    def answers(
        self, requests: Sequence[Request], mode: Mode, ahead: Timeout, error: Exception | None = None
    ) -> list[Permit | Hold]:
        if self.on_error == "raise" or (self.on_error == "hold" and mode == "add"):  # no rule holds `add`
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
        """A permit that this process gave, with its id in memory; None for any other permit."""
        return replace(permit, id=permit.id[len(IN_MEMORY) :]) if permit.id.startswith(IN_MEMORY) else None

    def _share(self, request: Request) -> Request:
        """The request by this process's share of the rates. Answers name the rules of the whole rates."""
        plan = request.plan
        policy = share_of(plan.policy, self._processes, plan.cost)
        share = self.memory._requests.request(request.key, policy, plan.cost)  # noqa: SLF001
        return replace(share, plan=replace(share.plan, reasons=plan.reasons))


def share_of(policy: Policy, processes: int, cost: int = 1) -> Policy:
    """Return one process's share of a policy, so that all processes together keep the policy.

    cost: the share admits at least this much at once. A calendar window cannot be stretched for that, so by it the
    processes together may admit more than the policy.
    """
    windows = []
    for window in policy.windows:
        # If a share is less than the cost, the process admits the cost, in an interval that is longer by as much.
        limit = max(cost, window.limit // processes)
        stretch = -(-limit * processes // window.limit)
        windows.append(Window(limit, interval_us=window.interval_us * stretch))
    burst = policy.burst
    if burst is not None:
        burst = Burst(max(cost, burst.limit // processes), every_us=burst.every_us * processes)
    dates = tuple(CalendarWindow(max(cost, window.limit // processes), window.unit) for window in policy.calendar)
    return replace(policy, windows=tuple(windows), calendar=dates, gap_us=policy.gap_us * processes, burst=burst)


def is_of_its_keys(error: Exception) -> bool:
    """Whether an error concerns the keys of one call alone: its script failed at them, or their slot moves.

    redis-py says ClusterError of a slot that moves. TO_ALL matches errors of a script that concern all keys.
    """
    text, kind = str(error), type(error).__name__
    return kind == "ClusterError" or (kind == "ResponseError" and "user_script" in text and not TO_ALL.search(text))


def seconds_of(timeout: str | timedelta | float) -> float:
    """Return a timeout in seconds. Raises ValueError if it is not longer than 0."""
    seconds = ahead_us(timeout) / 1e6
    if not seconds:
        raise ValueError(f"timeout must be longer than {timeout!r}")
    return seconds


def unreachable(error: Exception) -> LimiterUnreachableError:
    of_cluster = "it is a node of a cluster: give a RedisCluster, or a URL redis+cluster://host:6379"
    why = of_cluster if type(error).__name__ == "MovedError" else error
    return LimiterUnreachableError(f"Redis cannot be used by the limiter: {why}")
