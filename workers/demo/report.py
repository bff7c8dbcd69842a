"""Report the demo: counts from Redis, the laws from the wire, one verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from notifier.notification.job import TERMINAL
from notifier.rules.policies import Policies
from notifier.rules.verify import ACCEPTED, Send, Tightness, lateness_us, out_of_order, percentile, tightness
from notifier.simulators.wire import Arrival
from notifier.units import format_duration

TIGHTEST = 6


def report(  # noqa: PLR0917 - all that was measured
    rows: Sequence[Mapping[str, Any]],
    accepted_us: Sequence[int],
    arrivals: Sequence[Arrival],
    stats: Mapping[str, int],
    waiting: int,
    policies: Policies,
    seconds: float,
) -> dict[str, Any]:
    """Compare the arrivals with the rows that were sent and with the rules; return the report as plain JSON.

    accepted_us: when each row was accepted, in the order of the rows. laws_held: no notification was lost, no limit
    exceeded, and the order kept.
    """
    sends, repeats = _sends(rows, accepted_us, arrivals)
    entries = tightness(sends, policies)
    late = lateness_us(sends, policies)
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for number, row in enumerate(rows):
        names[row["user"], row["category"]].append(str(number))
    counts = {word: stats.get(word, 0) for word in ("accepted", *TERMINAL)}
    lost = counts["accepted"] - sum(counts[word] for word in TERMINAL)
    disorder, broken = out_of_order(names, sends), [said for entry in entries for said in entry.broken]
    return {
        **counts,
        "still_waiting": waiting,
        "dispatches_per_message": round((stats.get("dispatched", 0) + stats.get("looked", 0)) / len(rows), 3),
        "lateness_ms": {"p50": percentile(late, 0.5) / 1000, "p99": percentile(late, 0.99) / 1000},
        "out_of_order": disorder,
        "sent_twice": repeats,
        "tightest": [_as_dict(entry) for entry in sorted(entries, key=lambda entry: -entry.sends)[:TIGHTEST]],
        "broken": broken,
        "seconds": round(seconds, 1),
        "laws_held": not (broken or waiting or lost or disorder),
    }


def _as_dict(entry: Tightness) -> dict[str, Any]:
    return {
        "user": entry.user,
        "scope": entry.scope,
        "sends": entry.sends,
        "windows": {str(w): n for w, n in zip(entry.policy.windows, entry.largest, strict=True)},
        "gap": format_duration(entry.policy.gap_us) if entry.policy.gap_us else None,
        "smallest_gap_ms": None if entry.smallest_gap_us is None else entry.smallest_gap_us / 1000,
    }


def _sends(
    rows: Sequence[Mapping[str, Any]], accepted_us: Sequence[int], arrivals: Sequence[Arrival]
) -> tuple[list[Send], int]:
    """Return the accepted sends, and how many arrivals repeat one at the same device. data.n: the index of the row."""
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
