"""Laws 1, 3 and 9 where they are about time: the scenarios of the benchmarks, held to the bars of the issue."""

from __future__ import annotations

from redis import Redis

from benchmarks.priority import overload
from benchmarks.scenarios import IDEAL_DRAIN_S, acquire_together, bystanders, drain, gates
from notifier.embedded import EmbeddedRedis
from notifier.simulators.laws import percentile


def test_sixteen_processes_share_one_users_limit(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Laws 1 and 5: 16 processes at 10 per 1 s with a gap of 50 ms: none over, and 98 % of what is ideal."""
    found = acquire_together(redis, redis_server.url, processes=16, seconds=10)

    assert found.most <= 10
    assert found.smallest_gap_us >= 50_000
    assert found.share >= 0.98


def test_a_backlog_drains_as_early_as_allowed() -> None:
    """Laws 3 and 4: 200 of one user at 10 per 1 s take 5 % over the ideal at most, one dispatch each, in order."""
    found = drain(200)

    assert found.order == list(range(200))
    assert found.broken == []
    assert found.seconds <= 1.05 * IDEAL_DRAIN_S
    assert found.dispatches <= 1.02


def test_a_bystander_does_not_pay_for_anothers_backlog() -> None:
    """Law 9: behind 3,000 blocked of somebody else, who has nothing waiting is served within 100 ms (p99)."""
    late_us = bystanders(100, 3_000)

    assert len(late_us) == 100
    assert percentile(late_us, 0.99) <= 100_000


def test_gates_open_on_time_with_idle_workers() -> None:
    """Law 3: a gate opens a waiting line within 5 ms (p50) and 25 ms (p99), and never early."""
    found = gates(40)

    assert len(found.lateness_us) == 120
    assert found.broken == []
    assert min(found.lateness_us) >= 0
    assert percentile(found.lateness_us, 0.5) <= 5_000
    assert percentile(found.lateness_us, 0.99) <= 25_000


def test_an_urgent_one_passes_thousands_that_are_due() -> None:
    """Law 9: with 20,000 due in the lowest lane an urgent one leaves in 100 ms; in a flood of them those still go."""
    found = overload(20_000, 30, 1_000)

    assert len(found.late_us) == 30
    assert percentile(found.late_us, 0.99) <= 100_000
    assert found.share >= 0.05
