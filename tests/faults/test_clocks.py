"""Laws 1, 3 and 6 with clocks that are set while everything runs: Redis's own, and the workers'."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from notifier import Hold, Notifier, Permit, Policy, Window
from notifier.errors import InvalidPreferenceError
from notifier.rules.kinds.window import largest_count
from notifier.rules.preferences import Mute
from notifier.server.metrics import Metrics
from notifier.settings import parse_settings
from tests.faults.consistency import assert_empty_of_work
from tests.faults.stepped_clock import SteppedRedis, compiler
from tests.harness.asking import InRedis
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_workers, environment, stop

WIRE_WORKER = str(Path(__file__).parents[1] / "laws" / "wire_worker.py")
RATES = {"user": {"windows": ["4/1s", "10/3s"], "gap": "40ms"}, "worker": {"lease": "10s", "grace": "2s"}}
USERS, EACH = 8, 20
OF = {n: (f"u{n % USERS}", "default") for n in range(USERS * EACH)}
STEP_S = 5.0


def enqueue(fleet: Fleet) -> None:
    with fleet.notifier() as notifier:
        notifier.send_many(notification(user, n) for n, (user, _) in OF.items())


def step_at_once(server: SteppedRedis, step_s: float) -> int:
    """Set its clock while it stands still, so that nothing goes by the new one before the moment that is returned."""
    stop(server.pid)
    try:
        stepped_us = time.time_ns() // 1000
        server.step(step_s)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    return stepped_us


@pytest.mark.skipif(compiler() is None, reason="a clock is stepped by a preloaded library: Linux and a C compiler")
@pytest.mark.parametrize("step_s", [-STEP_S, STEP_S])
def test_redis_own_clock_is_set_under_load(step_s: float) -> None:
    """Set back, nobody is burst, and held for the step at most; set forward, the rules hold on the clock they go by."""
    step_us = int(step_s * 1_000_000)
    with (
        SteppedRedis() as server,
        start_fleet(RATES, workers=3, latency_ms=5, redis_server=nullcontext(server)) as fleet,
    ):
        enqueue(fleet)
        fleet.await_delivered(len(OF) * 2 // 5)
        stepped_us = step_at_once(server, step_s)
        before_us, (told_s, of_it_us), after_us = time.time_ns() // 1000, fleet.redis.time(), time.time_ns() // 1000
        with fleet.notifier() as notifier:
            notifier.send(notification("new", 1000))
            fleet.await_ended(len(OF) + 1)
            (record,) = notifier.history("new")
        alive = [worker.poll() for worker in fleet.workers]
        fleet.end_workers()
        for worker in fleet.workers:
            worker.wait(60)
        assert_empty_of_work(fleet.redis)
        arrived = sends(fleet.arrivals(), OF | {1000: ("new", "default")})
        if step_s > 0:
            late = [s for s in arrived if s.first_us >= stepped_us]
            early = [s for s in arrived if s.first_us < stepped_us]
            arrived = early + [replace(s, first_us=s.first_us + step_us, last_us=s.last_us + step_us) for s in late]
        broken = broken_rules(fleet, arrived)

    assert before_us <= told_s * 1_000_000 + of_it_us - step_us <= after_us, "its clock was set indeed"
    assert broken == []
    assert sorted(int(send.name) for send in arrived) == [*sorted(OF), 1000], "each once"
    assert alive == [None] * 3
    # By Redis's clock: the test itself may be late to look.
    assert [delay.why for delay in record.delays] == ["queue", "sending"], "who has sent nothing is not held"
    assert record.accepted_at is not None
    assert (record.handed_at[0] - record.accepted_at).total_seconds() < STEP_S


def test_workers_clocks_are_set_in_mid_run() -> None:
    """Law 6: workers whose clocks jump by ten hours, one back and one ahead, decide nothing differently for it."""
    with start_fleet(RATES, workers=0) as fleet:
        for hours in ("5", "-5", "0"):
            fleet.start_worker((WIRE_WORKER, "--wire-log", str(fleet.wire_log), "--clock-hours", hours))
        await_workers(fleet.redis, 3)
        enqueue(fleet)
        fleet.await_delivered(len(OF) * 2 // 5)
        for worker in fleet.workers:
            worker.send_signal(signal.SIGUSR1)
        fleet.await_ended(len(OF))
        alive = [worker.poll() for worker in fleet.workers]
        fleet.end_workers()
        for worker in fleet.workers:
            worker.wait(60)
        assert_empty_of_work(fleet.redis)
        arrived = sends(fleet.arrivals(), OF)
        broken = broken_rules(fleet, arrived)
        jumped = [b"clock_set" in path.read_bytes() for path in sorted(fleet.folder.glob("worker-*.log"))]

    assert jumped == [True] * 3
    assert broken == []
    assert sorted(int(send.name) for send in arrived) == sorted(OF), "each once"
    assert alive == [None] * 3


@pytest.mark.skipif(compiler() is None, reason="a clock is stepped by a preloaded library: Linux and a C compiler")
def test_a_mute_lasts_by_redis_clock() -> None:
    """Whatever clock the host has that asks for it; what is over is told by the same one."""
    with SteppedRedis() as server, Redis.from_url(server.url) as redis:
        server.step(7200)
        with Notifier(redis, parse_settings("providers: {fcm: {client: console}}")) as notifier:
            before = datetime.fromtimestamp(redis.time()[0], UTC)
            (mute,) = notifier.users.mute("ann", until=timedelta(hours=1)).mutes
            assert before <= mute.until - timedelta(hours=1) <= datetime.fromtimestamp(redis.time()[0] + 1, UTC)
            assert notifier.users.mute("ann", until=timedelta.max).mutes == (Mute(),)
            for over in (datetime.now(UTC) + timedelta(hours=1), timedelta(), timedelta.min):
                with pytest.raises(InvalidPreferenceError, match="is over; `unmute` ends a mute"):
                    notifier.users.mute("ann", until=over)


@pytest.mark.skipif(compiler() is None, reason="a clock is stepped by a preloaded library: Linux and a C compiler")
def test_what_expires_before_it_may_go_is_told_by_redis_clock(tmp_path: Path) -> None:
    """`notifier explain` on a host whose clock is two hours ahead: the next may go in an hour, and expires before."""
    with SteppedRedis() as server, Redis.from_url(server.url) as redis:
        server.step(-7200)
        config = tmp_path / "notifier.yaml"
        config.write_text(
            "user: {windows: [1/1h]}\ncategories: {news: {lane: bulk, expires: 30m}}\n"
            "providers: {fcm: {client: console}}\n"
        )
        with Notifier(redis, parse_settings(config.read_text())) as notifier:
            assert isinstance(notifier.acquire("ann", category="news"), Permit)
        command = [sys.executable, "-m", "notifier.cli", "explain", "--user", "ann", "--category", "news"]
        env = environment({"NOTIFIER_CONFIG": str(config), "NOTIFIER_REDIS_URL": server.url})
        told = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "one that is accepted now is not sent: news expires after 30m" in told


@pytest.mark.skipif(compiler() is None, reason="a clock is stepped by a preloaded library: Linux and a C compiler")
def test_metrics_count_on_where_the_clock_is_set_back() -> None:
    """Minutes come again, which were counted once; and what is counted in them is seen, at once, and once."""
    with SteppedRedis() as server, Redis.from_url(server.url) as redis:

        def accepted(n: int, step_s: float) -> int:
            server.step(step_s)
            redis.hincrby(f"notifier:minute:{redis.time()[0] // 60}", "a|chat", n)
            (found,) = re.findall(r'notifier_accepted_total{category="chat"} (\d+)', metrics.text().decode()) or [0]
            return int(found)

        metrics = Metrics(redis, [], {}, tuple)
        steps = (-120, -60, 0, -180, -180, -120, -60, 0, 3600)
        counted = [accepted(5, step_s) for step_s in steps]
        # Where a clock was just set back, nobody knows what of its minute is new.
        assert counted == [0, 5, 10, 10, 15, 20, 25, 30, 35]
        metrics = Metrics(redis, [], {}, tuple)  # another process, which begins at 0 in a minute that had been before
        assert [accepted(5, step_s) for step_s in (-180, -120, 3600)] == [0, 5, 10]


POLICY = Policy(windows=(Window(3, interval_us=1_000_000), Window(5, interval_us=4_000_000)), gap_us=100_000)


@given(st.lists(st.tuples(st.integers(0, 900_000), st.integers(0, 3_000_000)), min_size=1, max_size=40))
def test_a_clock_set_back_again_and_again_bursts_nobody(redis: Redis, moves: list[tuple[int, int]]) -> None:
    """Law 1 in true time, wherever the limiter's clock is set back to; and once it stands, the wait is what it said."""
    redis.flushdb()
    limiter = InRedis(redis)
    true_us, off_us, permitted = 1_700_000_000_000_000, 0, []
    for passed_us, back_us in moves:
        true_us += passed_us
        off_us -= back_us if passed_us % 5 == 0 else 0
        limiter.clock = str(true_us + off_us)
        if isinstance(limiter.acquire("ann", POLICY), Permit):
            permitted.append(true_us)
    assert all(largest_count(permitted, window.interval_us) <= window.limit for window in POLICY.windows)
    assert all(later - earlier >= POLICY.gap_us for earlier, later in pairwise(permitted))
    held = limiter.peek("ann", POLICY)
    if isinstance(held, Hold):
        limiter.clock = str(true_us + off_us + held.time_left_us)
        assert isinstance(limiter.acquire("ann", POLICY), Permit)
