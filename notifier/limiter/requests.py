"""Requests to a limiter, checked where they enter; whichever store answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from notifier.limiter.answers import Point
from notifier.limiter.plans import MAX_PLANS, Plan, StaleError, dates_of, plan_of
from notifier.limiter.rates import Limits, Rates, as_policy, is_name
from notifier.rules.policy import Policy
from notifier.rules.zones import DEFAULT_ZONE, check_zone
from notifier.units import LARGEST_LIMIT, duration_us

By: TypeAlias = Literal["total", "last_used", "rate", "held"]
Asked: TypeAlias = "tuple[str, Rates] | tuple[str, Rates, int]"
Mode: TypeAlias = Literal["take", "look", "add", "every"]
Timeout: TypeAlias = str | timedelta | float | None  # seconds, where it has no unit; None is for ever

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RANKS: Final[Mapping[By, str]] = {"total": "total", "last_used": "last", "rate": "rate", "held": "held"}
MINUTE_US: Final = 60_000_000
HOUR_S: Final = 3600
FOR_EVER_US: Final = 10**15
MAX_KEY_BYTES: Final = 1024
MAX_TOP: Final = 1_000  # keys in one answer: Redis does nothing else meanwhile


@dataclass(frozen=True, slots=True)
class Request:
    """One key that is asked for, and its plan: by which rules, and as how many sends. raw: the key as Redis has it."""

    key: str
    raw: bytes
    plan: Plan


class Requests:
    """Checks what is asked in one namespace, and knows the plans. clock: for tests, µs in place of Redis's clock."""

    def __init__(
        self,
        namespace: str,
        *,
        limits: Limits | None = None,
        usage_keep: str | timedelta | None = None,
        zone: str = DEFAULT_ZONE,
        clock: str = "",
    ) -> None:
        """limits: rates by name, or what gives those of now.

        usage_keep: how long the use of a key is known after its last; None counts no usage. zone: of calendar windows.
        """
        if not NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace {namespace!r} must be 1 to 64 of a-z, 0-9, _ and -, and begin with no sign")
        self.namespace = namespace
        self.clock = clock
        self._zone = check_zone(zone)
        self._limits = limits or {}
        self.keep_us = None if usage_keep is None else duration_us(usage_keep)
        self._plans: dict[tuple[Rates, int], Plan] = {}

    def limits(self) -> Mapping[str, Rates]:
        """The rates that have names, as of now."""
        return self._limits() if callable(self._limits) else self._limits

    def policy(self, rates: Rates) -> Policy:
        return as_policy(rates, self.limits)

    def request(self, key: str, rates: Rates, cost: int = 1) -> Request:
        """Check what was asked for, where it enters."""
        raw = check_key(key)
        try:
            plan = self._plans.get((rates, cost)) if type(cost) is int else None  # True is no 1
        except TypeError:  # a list
            plan = None
        return Request(key, raw, self._plan(rates, cost) if plan is None else plan)

    def _plan(self, rates: Rates, cost: int) -> Plan:
        """Rules that stand for themselves are checked once; what a name stands for may change."""
        policy = self.policy(rates)
        stands = isinstance(rates, str) and not is_name(rates) and not policy.calendar
        known: Rates = rates if stands else policy
        if type(cost) is not int:
            return plan_of(policy, cost)
        plan = self._plans.get((known, cost))
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            now = int(self.clock or time.time_ns() // 1000)  # Redis says if it is another
            plan = self._plans[known, cost] = plan_of(policy, cost, dates_of(policy, self._zone, now, now))
        return plan

    def renewed(self, requests: Sequence[Request], stale: StaleError) -> list[Request]:
        renewed = []
        for request in requests:
            plan = request.plan
            if plan.dates:
                dates = dates_of(plan.policy, self._zone, stale.now_us, stale.until_us)
                plan = self._plans[plan.policy, plan.cost] = plan_of(plan.policy, plan.cost, dates)
            renewed.append(replace(request, plan=replace(plan, reasons=request.plan.reasons)))
        return renewed

    def every(self, asked: Iterable[Asked]) -> list[Request]:
        """Check what is asked for together, where it enters."""
        requests = [self.request(*each) for each in asked]
        if not requests or len({request.key for request in requests}) < len(requests):
            raise ValueError("acquire_all takes one key or more, and each once: give all rates of a key together")
        return requests

    def added(self, key: str, cost: int, keep: str | timedelta) -> Request:
        """Build what `add` counts: no rule holds it, and it is known for `keep`."""
        return self.request(key, Policy(kept_us=duration_us(keep)), cost)

    def need_usage(self) -> None:
        if self.keep_us is None:
            raise ValueError("this limiter counts no usage; give it usage_keep, such as usage_keep='30d'")


def check_key(key: str) -> bytes:
    """Return a key as Redis has it; raise for what cannot name a key."""
    if not isinstance(key, str):
        raise TypeError(f"a key is text, not {type(key).__name__}")
    try:
        raw = key.encode()
    except UnicodeEncodeError:
        raise ValueError("a key is text that UTF-8 can write: this one has a lone surrogate") from None
    if not 1 <= len(raw) <= MAX_KEY_BYTES:
        raise ValueError(f"a key must be 1 to {MAX_KEY_BYTES} bytes long")
    return raw


def check_used(used: int) -> None:
    """Raise ValueError for what no permit can cost afterwards."""
    if type(used) is not int or not 0 <= used <= LARGEST_LIMIT:
        raise ValueError(f"what was used is a whole number from 0 to {LARGEST_LIMIT}, not {used!r}")


def ahead_us(value: Timeout) -> int:
    """How long a caller is ready to wait, in µs: text, a timedelta, seconds, or None for ever."""
    if value is None:
        return FOR_EVER_US
    # What is left until a deadline may be less than none.
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(value, timedelta | Real)
    return round(min(max(seconds, 0), FOR_EVER_US / 1e6) * 1e6) if is_number else duration_us(seconds)


def ranks_by(by: By, count: int) -> str:
    """The name under which Redis ranks keys by this; ValueError for another."""
    if by not in RANKS:
        raise ValueError(f"top goes by {', '.join(RANKS)}, not {by!r}")
    if type(count) is not int or not 1 <= count <= MAX_TOP:
        raise ValueError(f"top takes a whole number of keys from 1 to {MAX_TOP}, not {count!r}")
    return RANKS[by]


def in_steps(now: int, minutes: Mapping[int, int], last: str | timedelta, step: str | timedelta) -> list[Point]:
    """A series by steps of what was counted by the minute. Raises ValueError for a span that has no such steps."""
    last_us, step_us = duration_us(last), duration_us(step)
    if step_us < MINUTE_US or step_us % MINUTE_US:
        raise ValueError("step must be whole minutes: a series is counted by the minute")
    if last_us % step_us:
        raise ValueError("last must be a multiple of step")
    steps, width = last_us // step_us, step_us // MINUTE_US
    first = now // MINUTE_US + 1 - steps * width
    counts = [0] * steps
    for minute, count in minutes.items():
        place = (minute - first) // width
        if 0 <= place < steps:
            counts[place] += count
    return [Point((first + place * width) * MINUTE_US, count) for place, count in enumerate(counts)]
