"""Law 2 behind Sentinel: a replica is promoted under load, and producers and workers follow it by themselves."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from redis import Redis

from notifier import NotReplicatedError, RedisUnusableError
from tests.faults.consistency import assert_empty_of_work
from tests.faults.sentinel import WatchedRedis
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import await_that

RATES = {
    "user": {"windows": ["5/1s"], "gap": "20ms"},
    "worker": {"lease": "3s", "grace": "2s"},
    "redis": {"socket_timeout": "1s", "wait_replicas": 1},
}
COUNT, USERS = 400, 20


@pytest.fixture
def watched() -> Iterator[WatchedRedis]:
    with WatchedRedis() as server:
        yield server


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_promotion_loses_nothing_that_was_replicated(how: str, watched: WatchedRedis) -> None:
    """With wait_replicas every notification that send accepted arrives, though the primary dies or hangs under load."""
    with start_fleet(
        RATES, workers=3, latency_ms=10, apns={"timeout": "1s"}, redis_server=nullcontext(watched)
    ) as fleet:
        with fleet.notifier() as notifier:
            notifier.send_many(notification(f"u{n % USERS}", n) for n in range(COUNT))
        fleet.await_delivered(COUNT // 4)
        watched.primary.kill() if how == "killed" else watched.freeze()
        watched.await_promotion()
        with Redis.from_url(watched.replica.url) as promoted:
            arrived = _arrived(fleet, promoted)
            alive = [worker.poll() for worker in fleet.workers]
            fleet.end_workers()
            for worker in fleet.workers:
                worker.wait(60)
            assert_empty_of_work(promoted)

    assert set(arrived) == set(range(COUNT))
    assert len(arrived) - COUNT <= 3 * 100, "no more came twice than the workers had in flight"
    assert alive == [None] * 3, "no worker gave up"


def test_a_producer_goes_on_after_a_promotion(watched: WatchedRedis) -> None:
    """`send` fails while there is no primary, and works again by itself; what failed can be repeated by its id."""
    with (
        start_fleet(RATES, workers=0, apns={"timeout": "1s"}, redis_server=nullcontext(watched)) as fleet,
        fleet.notifier() as patient,
        fleet.notifier(hasty=True) as notifier,
    ):
        patient.send(notification("u", 0), job_id="first")
        watched.primary.kill()
        with pytest.raises(RedisUnusableError):
            notifier.send(notification("u", 1), job_id="second")
        watched.await_promotion()
        # There is no second replica now: it is accepted, and said not to be safe.
        for _ in range(2):
            with pytest.raises(NotReplicatedError) as unsafe:
                notifier.send(notification("u", 1), job_id="second")
            assert unsafe.value.job_ids == ["second"]
        with Redis.from_url(watched.replica.url) as promoted:
            assert promoted.lrange("rq:queue:default", 0, -1) == [b"first", b"second"]


def _arrived(fleet: Fleet, promoted: Redis) -> list[int]:
    """The numbers that arrived, once all have been delivered and settled at the new primary."""

    def all_done() -> bool:
        waiting = promoted.exists("notifier:leases", "notifier:later", "rq:queue:default")
        return not waiting and len({a.data["n"] for a in fleet.arrivals()}) == COUNT

    await_that(all_done, f"all {COUNT} to arrive", 60, 0.05)
    return [int(a.data["n"]) for a in fleet.arrivals()]
