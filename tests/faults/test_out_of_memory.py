"""Laws 1, 2 and 8 with a Redis at the end of its memory: it takes nothing new, and what it has is sent all the same."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier import Notifier, RedisUnusableError
from notifier.queue import own_rules
from notifier.queue.health import LOOKED
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.rule_table import RuleTable
from notifier.settings import load_settings
from notifier.store.partitions import Partitions
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.consistency import assert_consistent, assert_empty_of_work
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that, total
from tests.harness.serving import serve
from tests.harness.support import worker, write_config
from workers.configuration.reload import Reload
from workers.sending.unreached_devices import UnreachedDevices

RATES: Final = {
    "user": {"windows": ["5/1s"], "gap": "10ms"},
    "worker": {"lease": "20s", "grace": "2s"},
    "redis": {"socket_timeout": "2s"},
}
USERS: Final = 10  # so few that Redis fills faster than their limits let it empty, also on a busy machine
ROOM: Final = 400_000  # bytes until it is full: some three hundred notifications


def user(n: int) -> str:
    return f"u{n % USERS}"


def send_until_refused(notifier: Notifier, first: int) -> tuple[int, str]:
    """The number of the first that was refused, and what was said."""
    n = first
    try:
        while True:
            notifier.send(notification(user(n), n, body="x" * 500), job_id=f"n{n}")
            n += 1
    except RedisUnusableError as error:
        return n, str(error)


@contextmanager
def still(fleet: Fleet) -> Iterator[None]:
    """Stop the workers for the time of a look."""
    for process in fleet.workers:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in fleet.workers:
            process.send_signal(signal.SIGCONT)


def test_a_full_redis_takes_nothing_and_gives_what_it_has() -> None:
    """What is refused is in no place, what was accepted goes out once each while it stays full, and then all go on."""
    with start_fleet(RATES, workers=2, latency_ms=5, apns={"timeout": "15s"}) as fleet, fleet.notifier() as notifier:
        redis = fleet.redis
        for name in ("worker-1", "worker-2"):  # one that is not there yet would not come
            await_that(lambda name=name: redis.hget(f"rq:worker:{name}", "state") == b"idle", f"the start of {name}")
        notifier.send(notification(user(0), 0), job_id="n0")
        fleet.await_ended(1)  # so that all scripts are in Redis: they take half of the room
        redis.config_set("maxmemory", redis.info("memory")["used_memory"] + ROOM)
        refused, said = send_until_refused(notifier, 1)
        delivered_when_full = total(redis, "delivered")
        redis.config_set("maxmemory", 1)  # and from here on nothing that is freed is enough
        with still(fleet):
            assert redis.exists(f"rq:job:n{refused}") == 0
            assert_consistent(redis)
        redis.expire("rq:worker:worker-1", 60)
        fleet.await_ended(refused)
        await_that(lambda: redis.ttl("rq:worker:worker-1") > 60, "a sign of life, or RQ would forget it")
        looked = redis.hget("rq:worker:worker-1", LOOKED)
        await_that(lambda: redis.hget("rq:worker:worker-1", LOOKED) != looked, "a look that is told: it is healthy")
        with pytest.raises(RedisUnusableError, match="out of memory"):
            notifier.send(notification(user(refused), refused), job_id=f"n{refused}")
        redis.config_set("maxmemory", 0)
        notifier.send_many(
            (notification(user(n), n) for n in range(refused, refused + 60)),
            job_ids=[f"n{n}" for n in range(refused, refused + 60)],
        )
        fleet.await_ended(refused + 60)
        fleet.end_workers()
        statuses = [process.wait(60) for process in fleet.workers]
        assert_empty_of_work(redis)
        ended = total(redis, "accepted"), total(redis, "delivered")
        arrivals = fleet.arrivals()
        broken = broken_rules(fleet, sends(arrivals, {n: (user(n), "default") for n in range(refused + 60)}))

    assert "out of memory" in said
    assert delivered_when_full < refused, "it filled up under load"
    assert sorted(int(arrival.data["n"]) for arrival in arrivals) == list(range(refused + 60)), "each once"
    assert ended == (refused + 60, refused + 60)
    assert broken == []
    assert statuses == [0, 0], "no worker gave up"


def test_a_worker_that_starts_on_a_full_redis_says_so(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """It cannot register, and ends with one clear line."""
    config = write_config(tmp_path, redis_server.url)
    redis.config_set("maxmemory", 1)
    try:
        with worker(config) as process:
            assert process.process.wait(60) == 4
    finally:
        redis.config_set("maxmemory", 0)
    assert "Redis is out of memory" in process.log
    assert "Traceback" not in process.log


@pytest.mark.usefixtures("slow_looks")
async def test_what_a_worker_writes_by_itself_is_written_to_a_full_redis(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """A worker that could not note it would settle nothing any more, and free nothing; and new rates are taken up."""
    path = tmp_path / "n.yaml"
    path.write_text("user: {gap: 1s}", encoding="utf-8")
    rules = RuleTable(Policies(Policy(), users={"ann": Policy(gap_us=1)}))
    async with AsyncRedis.from_url(redis_server.url, protocol=2) as client:
        reload = Reload(path, Partitions.around(client), load_settings(path, environ={}))
        await reload.begin()
        unreached = UnreachedDevices(client, {})
        unreached.delivered("webpush@push.example", "a", 100.0)
        redis.config_set("maxmemory", 1)
        try:
            await own_rules.publish(client, rules, "w")
            await unreached.tell()
            path.write_text("user: {gap: 9s}", encoding="utf-8")
            taken = await reload.changed() or await reload.changed()
            await serve(client, reload.version).sweep()
        finally:
            redis.config_set("maxmemory", 0)
    assert taken is not None
    assert redis.hget("notifier:leaders", "#walked") == redis.hget("notifier:leaders", "#since")
    assert redis.hgetall(f"notifier:own_rules:{rules.own_rules}").keys() == {b":ann", b"0"}
    assert redis.exists("notifier:taken:webpush@push.example:") == 1
