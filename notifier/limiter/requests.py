"""Requests to a limiter: checked before Redis or the memory answers them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from notifier.limiter.answers import Point, Usage
from notifier.limiter.plans import MAX_PLANS, Plan, StaleError, dates_of, plan_of
from notifier.limiter.rates import Limits, Rates, as_policy, is_name
from notifier.rules.policy import Policy
from notifier.rules.zones import DEFAULT_ZONE, check_zone
from notifier.units import LARGEST_LIMIT, duration_us

By: TypeAlias = Literal["total", "last_used", "rate", "held"]
Asked: TypeAlias = "tuple[str, Rates] | tuple[str, Rates, int]"
Mode: TypeAlias = Literal["take", "look", "add", "every"]
Timeout: TypeAlias = str | timedelta | float | None  # a number is seconds; None is for ever

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RANKS: Final[Mapping[By, str]] = {"total": "total", "last_used": "last", "rate": "rate", "held": "held"}
MINUTE_US: Final = 60_000_000
MINUTES: Final[Mapping[str, int]] = {"1m": 1, "1h": 60, "1d": 1440}
HOUR_S: Final = 3600
FOR_EVER_US: Final = 10**15
MAX_KEY_BYTES: Final = 1024
MAX_TOP: Final = 1_000  # keys in one answer: Redis does nothing else meanwhile


@dataclass(frozen=True, slots=True)
class Request:
    """A key and a plan: the rules, and the cost. raw: the key as Redis has it."""

    key: str
    raw: bytes
    plan: Plan


@dataclass(slots=True)
class Use:
    """The usage of a key. minutes: how many sends each minute had, by its number since the epoch."""

    total: int = 0
    held: int = 0
    first_us: int | None = None
    last_us: int | None = None
    asked_us: int = 0
    minutes: Counter[int] = field(default_factory=Counter)

    def in_last(self, minutes: int, now: int) -> int:
        """How many sends the latest `minutes` had, the minute of `now` included."""
        this = now // MINUTE_US
        return sum(self.minutes.get(minute, 0) for minute in range(this - minutes + 1, this + 1))

    def rank(self, by: By, now: int) -> int:
        """The number that `top` orders keys by; 0 leaves a key out."""
        if by == "rate":
            return self.in_last(60, now)
        return {"total": self.total, "held": self.held, "last_used": self.asked_us}[by]

    def told(self, key: str, now: int) -> Usage:
        rates = {name: self.in_last(span, now) / (span * 60) for name, span in MINUTES.items()}
        return Usage(key, self.total, self.held, self.first_us, self.last_us, rates)


class Requests:
    """Checks the requests of one namespace, and caches plans. clock: for tests, µs in place of Redis's clock."""

    def __init__(
        self,
        namespace: str,
        *,
        limits: Limits | None = None,
        usage_keep: str | timedelta | None = None,
        zone: str = DEFAULT_ZONE,
        clock: str = "",
    ) -> None:
        """limits: rates by name, or a function that returns the current ones.

        usage_keep: how long usage is kept after a key's last use; None counts no usage. zone: of calendar windows.
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
        """The named rates, as they are now."""
        return self._limits() if callable(self._limits) else self._limits

    def policy(self, rates: Rates) -> Policy:
        return as_policy(rates, self.limits)

    def request(self, key: str, rates: Rates, cost: int = 1) -> Request:
        """Check a request, and find or make its plan."""
        raw = check_key(key)
        try:
            plan = self._plans.get((rates, cost)) if type(cost) is int else None  # True would find the plan of 1
        except TypeError:  # a list cannot be a dict's key
            plan = None
        return Request(key, raw, self._plan(rates, cost) if plan is None else plan)

    def _plan(self, rates: Rates, cost: int) -> Plan:
        """Cache plans by text if the text always means the same policy. A name may change, and dates become stale."""
        policy = self.policy(rates)
        is_fixed = isinstance(rates, str) and not is_name(rates) and not policy.calendar
        known: Rates = rates if is_fixed else policy
        if type(cost) is not int:
            return plan_of(policy, cost)
        plan = self._plans.get((known, cost))
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            now = int(self.clock or time.time_ns() // 1000)  # if Redis's clock differs, the plan is renewed
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
        """Check requests whose permits are taken together or not at all."""
        requests = [self.request(*each) for each in asked]
        if not requests or len({request.key for request in requests}) < len(requests):
            raise ValueError("acquire_all takes one key or more, and each once: give all rates of a key together")
        return requests

    def added(self, key: str, cost: int, keep: str | timedelta) -> Request:
        """Build the request of `add`: it has no rules, and its send is kept for `keep`."""
        return self.request(key, Policy(kept_us=duration_us(keep)), cost)

    def need_usage(self) -> None:
        if self.keep_us is None:
            raise ValueError("this limiter counts no usage; give it usage_keep, such as usage_keep='30d'")


def check_key(key: str) -> bytes:
    """Return a key as Redis has it; raise TypeError or ValueError if it cannot name a key."""
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
    """Raise ValueError if no permit can be given this cost afterwards."""
    if type(used) is not int or not 0 <= used <= LARGEST_LIMIT:
        raise ValueError(f"what was used is a whole number from 0 to {LARGEST_LIMIT}, not {used!r}")


def ahead_us(value: Timeout) -> int:
    """How long a caller is ready to wait, in µs: text, a timedelta, seconds, or None for ever."""
    if value is None:
        return FOR_EVER_US
    # The time left until a deadline may be negative.
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(value, timedelta | Real)
    return round(min(max(seconds, 0), FOR_EVER_US / 1e6) * 1e6) if is_number else duration_us(seconds)


def ranks_by(by: By, count: int) -> str:
    """Return Redis's name of a ranking. Raises ValueError if there is no such ranking, or for a wrong count."""
    if by not in RANKS:
        raise ValueError(f"top goes by {', '.join(RANKS)}, not {by!r}")
    if type(count) is not int or not 1 <= count <= MAX_TOP:
        raise ValueError(f"top takes a whole number of keys from 1 to {MAX_TOP}, not {count!r}")
    return RANKS[by]


def in_steps(now: int, minutes: Mapping[int, int], last: str | timedelta, step: str | timedelta) -> list[Point]:
    """Sum the counts of minutes into steps. Raises ValueError if the span cannot be divided into these steps."""
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
