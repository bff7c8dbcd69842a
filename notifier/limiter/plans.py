"""Plans: the rules and the cost of a request, checked once and packed as the script `limit` takes them."""

from __future__ import annotations

import itertools
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from notifier.limiter.protocol import BLOCK, BLOCKED, BURST
from notifier.rules.policy import Policy, check_fits_all
from notifier.rules.zones import zone_at
from notifier.units import format_duration

MAX_PLANS: Final = 1024
ID_BYTES: Final = 2
ENDS: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules and a cost. packed: their numbers for the script, see limit_rules.lua.

    kept_us: how long a send is kept. dates: for each calendar window its limit, and the µs at which its days (weeks,
    months) begin, from the current one on. reasons: the text of each rule in a Hold, by the rule's number.
    """

    policy: Policy
    cost: int
    kept_us: int
    dates: tuple[tuple[int, tuple[int, ...]], ...]
    reasons: dict[int, str]
    packed: bytes


class StaleError(Exception):
    """The dates of a plan do not reach from `now_us` to `until_us`. answers: those to the requests before it."""

    def __init__(self, now_us: int, until_us: int, answers: Sequence[Any] = ()) -> None:
        super().__init__(now_us, until_us)
        self.now_us = now_us
        self.until_us = until_us
        self.answers = list(answers)


def plan_of(policy: Policy, cost: int, dates: tuple[tuple[int, tuple[int, ...]], ...] = ()) -> Plan:
    """Make a plan. Raises ValueError if the rules never admit the cost, or reach too far back."""
    check_fits_all(policy, cost)
    windows = [(window.limit, window.interval_us) for window in policy.windows]
    burst = (policy.burst.limit, policy.burst.every_us) if policy.burst else (0, 0)
    kept_us = policy.horizon_us
    reasons = {-1: "", 0: f"gap {format_duration(policy.gap_us)}", BURST: str(policy.burst), BLOCK: BLOCKED}
    reasons |= {n: str(window) for n, window in enumerate((*policy.windows, *policy.calendar), 1)}
    numbers = [cost, policy.gap_us, kept_us, *burst, len(windows)]
    numbers += itertools.chain(*windows, *((limit, len(begins), *begins) for limit, begins in dates))
    packed = struct.pack(f">{len(numbers)}Q", *numbers)
    return Plan(policy, cost, kept_us, dates, reasons, packed)


def dates_of(policy: Policy, zone: str, now_us: int, until_us: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """For each calendar window its limit, and the starts of its days (weeks, months): up to two after `until_us`."""
    found = []
    for window in policy.calendar:
        clock = zone_at(zone, now_us)
        begins = [clock.next_start(window.unit, now_us - 2 * window.horizon_us)]
        while len(begins) < ENDS or begins[-ENDS] <= until_us:
            begins.append(zone_at(zone, begins[-1]).next_start(window.unit, begins[-1]))
        first = max(n for n, each in enumerate(begins) if each <= now_us)
        found.append((window.limit, tuple(begins[first:])))
    return tuple(found)


class PermitIds:
    """Ends of permits' ids, counted from a random number on, so that two sends of a key in one µs differ."""

    __slots__ = ("_count", "_pid")

    def __init__(self) -> None:
        self._pid = 0

    def end(self) -> bytes:
        if self._pid != os.getpid():  # the first call of a process, also of a forked one
            self._count, self._pid = itertools.count(secrets.randbits(8 * ID_BYTES)), os.getpid()
        return (next(self._count) & 0xFFFF).to_bytes(ID_BYTES, "big")


def id_of(at_us: int, end: bytes) -> str:
    return f"{at_us}-{end.hex()}"


def parts_of(permit_id: str) -> tuple[int, bytes]:
    at, _, end = permit_id.partition("-")
    return int(at), bytes.fromhex(end)
