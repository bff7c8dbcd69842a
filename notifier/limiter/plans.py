"""Plans: what of a request is the same at each call, checked once and packed as the script `limit` takes it."""

from __future__ import annotations

import itertools
import os
import secrets
import string
import struct
from dataclasses import dataclass
from typing import Final

from notifier.limiter.protocol import describe
from notifier.rules.costs import check_cost
from notifier.rules.policy import Policy
from notifier.scripts.packed import pack

MAX_PLANS: Final = 1024
LETTERS: Final = f"{string.ascii_letters}{string.digits}-_"


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules and a cost. packed: their numbers for the script; None where only `limit_any` judges such rules.

    names: of the windows, by number less one. reasons: what a Hold says, by the number of the rule.
    """

    policy: Policy
    cost: int
    packed: bytes | None
    names: tuple[str, ...]
    reasons: tuple[str, ...]


def plan_of(policy: Policy, cost: int) -> Plan:
    """The plan for these; raises ValueError where the rules never admit the cost."""
    check_cost(policy, None, cost)
    names = tuple(map(str, policy.windows))
    reasons = tuple(describe("", policy, rule).strip() for rule in range(len(names) + 1))
    if not policy.is_plain:
        return Plan(policy, cost, None, names, reasons)
    numbers = [cost, policy.gap_us, policy.horizon_us]
    for window in policy.windows:
        numbers += (window.limit, window.interval_us)
    return Plan(policy, cost, pack([struct.pack(f">{len(numbers)}Q", *numbers)]), names, reasons)


class PermitIds:
    """Ends of permits' ids: no two sends of a key have the same within a µs.

    Half of each is random, for each process anew, and the other half is counted.
    """

    __slots__ = ("_count", "_pid", "_random")

    def __init__(self) -> None:
        self._pid = 0

    def end(self) -> str:
        """Six letters."""
        if self._pid != os.getpid():  # new, or in the child of a fork
            self._random, self._count, self._pid = secrets.token_urlsafe(3)[:3], itertools.count(), os.getpid()
        n = next(self._count)
        return self._random + LETTERS[n >> 12 & 63] + LETTERS[n >> 6 & 63] + LETTERS[n & 63]


def send_of(permit_id: str) -> bytes:
    """A permit's send as Redis has it: see `usage.lua`."""
    return int(permit_id[:-6]).to_bytes(8, "big") + permit_id[-6:].encode()
