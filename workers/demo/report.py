"""Report the demo: counts from Redis, the laws from the wire, one verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from notifier.notification.job import TERMINAL
from notifier.rules.policies import Policies
from notifier.rules.verify import ACCEPTED, Send, Tightness, lateness_us, out_of_order, percentile, tightness
from notifier.simulators.wire import Arrival
from notifier.units import format_duration

TIGHTEST = 6


@dataclass(frozen=True, slots=True)
class Report:
    """The demo's result; `held` tells whether every law held."""

    counts: Mapping[str, int]
    waiting: int
    dispatches: float
    late_p50_us: int
    late_p99_us: int
    disorder: int
    repeats: int
    tightest: Sequence[Tightness]
    broken: Sequence[str]
    seconds: float

    @property
    def held(self) -> bool:
        """Whether nothing was lost, nobody was burst, and order was kept."""
        lost = self.counts["accepted"] - sum(self.counts[word] for word in TERMINAL)
        return not (self.broken or self.waiting or lost or self.disorder)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON."""
        return {
            **self.counts,
            "still_waiting": self.waiting,
            "dispatches_per_message": round(self.dispatches, 3),
            "lateness_ms": {"p50": self.late_p50_us / 1000, "p99": self.late_p99_us / 1000},
            "out_of_order": self.disorder,
            "sent_twice": self.repeats,
            "tightest": [_as_dict(entry) for entry in self.tightest],
            "broken": list(self.broken),
            "seconds": round(self.seconds, 1),
            "laws_held": self.held,
        }


def _as_dict(entry: Tightness) -> dict[str, Any]:
    return {
        "user": entry.user,
        "scope": entry.scope,
        "sends": entry.sends,
        "windows": {str(w): n for w, n in zip(entry.policy.windows, entry.largest, strict=True)},
        "gap": format_duration(entry.policy.gap_us),
        "smallest_gap_ms": None if entry.smallest_gap_us is None else entry.smallest_gap_us / 1000,
    }


def report(  # noqa: PLR0917 - all that was measured
    rows: Sequence[Mapping[str, Any]],
    accepted_us: Sequence[int],
    arrivals: Sequence[Arrival],
    stats: Mapping[str, int],
    waiting: int,
    policies: Policies,
    seconds: float,
) -> Report:
    """Hold the wire against the rows that were sent and the rules. accepted_us: when each row was, in their order."""
    sends, repeats = _sends(rows, accepted_us, arrivals)
    entries = tightness(sends, policies)
    late = lateness_us(sends, policies)
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for number, row in enumerate(rows):
        names[row["user"], row["category"]].append(str(number))
    return Report(
        counts={word: stats.get(word, 0) for word in ("accepted", *TERMINAL)},
        waiting=waiting,
        dispatches=(stats.get("dispatched", 0) + stats.get("looked", 0)) / max(1, len(rows)),
        late_p50_us=percentile(late, 0.5),
        late_p99_us=percentile(late, 0.99),
        disorder=out_of_order(names, sends),
        repeats=repeats,
        tightest=sorted(entries, key=lambda entry: -entry.sends)[:TIGHTEST],
        broken=[said for entry in entries for said in entry.broken],
        seconds=seconds,
    )


def _sends(
    rows: Sequence[Mapping[str, Any]], accepted_us: Sequence[int], arrivals: Sequence[Arrival]
) -> tuple[list[Send], int]:
    """The sends that a provider took, and how many came twice to the same device. data.n: the place of a row."""
    seen: dict[int, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if arrival.status == ACCEPTED:
            seen[int(arrival.data["n"])].append(arrival)
    sends = []
    for number, (row, at_us) in enumerate(zip(rows, accepted_us, strict=True)):
        if of_it := seen.get(number):
            times = [arrival.at_us for arrival in of_it]
            sends.append(Send(str(number), row["user"], row["category"], min(times), max(times), ready_us=at_us))
    repeats = sum(len(of_it) - len({arrival.token for arrival in of_it}) for of_it in seen.values())
    return sends, repeats
