"""The laws about time, as figures: a drain, a bystander, the wake-ups. tests/laws holds what causes them."""

from __future__ import annotations

from benchmarks.harness import Figure, at_least, at_most
from notifier.rules.verify import percentile
from tests.harness.scenarios import IDEAL_DRAIN_S, bystanders, drain, wake_ups


def measure(*, quick: bool) -> list[Figure]:
    """Each in its own fleet of four workers."""
    count = 50 if quick else 200
    ideal_s = IDEAL_DRAIN_S if count == 200 else count / 10 - 1  # noqa: PLR2004 - what the issue names
    drained = drain(count)
    behind = bystanders(30 if quick else 100)
    opened = wake_ups(waves=1 if quick else 3)
    late = opened.lateness_us
    return [
        Figure(f"drain of {count} at 10/s", drained.seconds, "s", at_most(1.05 * ideal_s), f"ideal {ideal_s:g}"),
        Figure("dispatches for each of them", drained.dispatches, "", at_most(1.02)),
        Figure("a bystander behind 3,000, p99", percentile(behind.late_us, 0.99) / 1000, "ms", at_most(100)),
        Figure("wake-up lateness, p50", percentile(late, 0.5) / 1000, "ms", at_most(5)),
        Figure("wake-up lateness, p99", percentile(late, 0.99) / 1000, "ms", at_most(25)),
        Figure("wake-up lateness, least (never early)", min(late) / 1000, "ms", at_least(0)),
    ]
