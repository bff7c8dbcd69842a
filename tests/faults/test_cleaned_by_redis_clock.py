"""RQ's registries are emptied by Redis's clock: a worker's own may be hours ahead or behind (law 6)."""

from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from notifier.settings import parse_settings
from tests.faults.stepped_clock import SteppedRedis, compiler
from tests.harness.fleet import start_fleet
from tests.harness.processes import await_that
from workers import PushWorker

HOUR_S: Final = 3600
WIRE_WORKER: Final = str(Path(__file__).parents[1] / "laws" / "wire_worker.py")
SETTINGS: Final = parse_settings("providers: {fcm: {client: console}}")


def register(redis: Redis, left_s: dict[str, int]) -> None:
    """Jobs in RQ's failed and finished registries, each with so long to stay by Redis's clock."""
    now: Any = redis.time()
    for job_id, seconds in left_s.items():
        for name in ("failed", "finished"):
            redis.hset(f"rq:job:{job_id}", mapping={"origin": "default", "status": name, "created_at": ""})
            redis.zadd(f"rq:{name}:default", {job_id: now[0] + seconds})


def registered(redis: Redis) -> list[set[str]]:
    return [
        {job_id.decode() for job_id in redis.zrange(f"rq:{name}:default", 0, -1)} for name in ("failed", "finished")
    ]


KEPT: Final = {"an hour": HOUR_S, "half an hour": HOUR_S // 2, "over": -60}
STAY: Final = [{"an hour", "half an hour"}] * 2


def test_a_worker_two_hours_ahead_empties_nothing() -> None:
    """A whole worker, all of whose clocks are off: its upkeep, which it does as it starts, takes what is over alone."""
    with start_fleet({}, workers=0) as fleet:
        register(fleet.redis, KEPT)
        fleet.start_worker((WIRE_WORKER, "--wire-log", str(fleet.wire_log), "--clock-hours", "2"))
        await_that(lambda: "over" not in registered(fleet.redis)[0], "its upkeep")
        assert registered(fleet.redis) == STAY


def test_what_a_worker_two_hours_behind_runs_is_not_abandoned() -> None:
    """Another worker's upkeep would have it run twice."""
    rates = {"worker": {"functions": ["time"], "grace": "1s"}}
    with start_fleet(rates, workers=0) as fleet:
        log = ("--wire-log", str(fleet.wire_log))
        fleet.start_worker((WIRE_WORKER, *log, "--clock-hours", "-2"))
        job = Queue("default", connection=fleet.redis, serializer=JSONSerializer).enqueue("time.sleep", 600)
        await_that(lambda: fleet.redis.zcard("rq:wip:default") == 1 and job.get_status() == "started", "its start")
        PushWorker(["default"], connection=fleet.redis, settings=SETTINGS).clean_registries()
        assert fleet.redis.zcard("rq:wip:default") == 1
        assert job.get_status() == "started"


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler, on Linux")
@pytest.mark.parametrize("hours", [-2, 2])
def test_when_redis_says_so_they_go(hours: int) -> None:
    """The other way round: the worker's clock is right, and Redis's is off; Redis's counts."""
    with SteppedRedis() as server, Redis.from_url(server.url) as redis:
        server.step(hours * HOUR_S)
        register(redis, KEPT)
        PushWorker(["default"], connection=redis, settings=SETTINGS).clean_registries()
        assert registered(redis) == STAY
        server.step(hours * HOUR_S + 0.75 * HOUR_S)
        PushWorker(["default"], connection=redis, settings=SETTINGS).clean_registries()
        assert registered(redis) == [{"an hour"}] * 2
