"""Quiet hours where they count, at the provider, while Redis's clock goes through a night."""

import time
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from redis import Redis

from tests.faults.stepped_clock import SteppedRedis, compiler
from tests.harness.support import Simulators, eventually, fcm, note, notifier, worker, write_config

ZONE = "Europe/Berlin"
LEASE_S, PACE_S, HELD = 3, 0.2, 9
PHONE = fcm("ann")  # Apple refuses tokens that are dated so far ahead
RULES = {"zone": ZONE, "user": {"windows": ["5/1s"], "quiet_hours": "21:00-08:00"}}


@pytest.mark.skipif(compiler() is None, reason="a clock is stepped by a preloaded library: Linux and a C compiler")
def test_a_night_at_the_wire(tmp_path: Path) -> None:
    """Nothing is received by night though messages come all the time; then the held come at the pace, in order."""
    evening = (datetime.now(ZoneInfo(ZONE)) + timedelta(days=1)).replace(hour=21, minute=0, second=0, microsecond=0)
    morning = (evening + timedelta(days=1)).replace(hour=8)
    with SteppedRedis() as server, Simulators(tmp_path / "simulators") as simulators:
        config = write_config(tmp_path, server.url, simulators.providers(), **RULES)
        server.step(evening.timestamp() - 60 - time.time())
        with notifier(config) as producer, worker(config) as running, Redis.from_url(server.url) as redis:
            running.ready(redis)
            for n in range(4):
                producer.send(note("ann", f"day-{n}", PHONE))
            # Settled as well: to what is in flight a step of the clock is the end of its lease.
            eventually(lambda: redis.hget("notifier:stats", "delivered") == b"4", "what came by day")
            # From one lease before the night on nothing may be let go, as it might be received as late as that.
            server.step(evening.timestamp() - LEASE_S - time.time())
            held = [producer.send(note("ann", f"night-{n}", PHONE)) for n in range(HELD)]
            eventually(lambda: redis.zcard("rq:scheduled:default") == HELD, "all that is held")
            # As early as is allowed: by Redis's clock, as a slow machine is late at the wire.
            opens_us = int(morning.timestamp()) * 1_000_000
            eventually(lambda: redis.zscore("notifier:wakeups:default", "ann") == opens_us, "a wake-up in the morning")
            expected = [status.expected_at for job_id in held if (status := producer.status(job_id))]
            by_day = len(simulators.all())
            server.step(by_night := morning.timestamp() - 1 - time.time())
            eventually(lambda: len(simulators.titles("night-")) == HELD, "what came by night")
            arrivals = simulators.all()
            titles = simulators.titles("night-")

    assert by_day == 4
    assert titles == [f"night-{n}" for n in range(HELD)]
    came = [arrival.at_us / 1e6 + by_night for arrival in arrivals[4:]]
    assert came[0] >= morning.timestamp()
    assert min(after - before for before, after in pairwise(came)) >= PACE_S
    assert expected == [morning + timedelta(seconds=PACE_S * n) for n in range(HELD)]
