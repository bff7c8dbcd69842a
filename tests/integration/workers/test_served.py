"""What waits is looked at again where a worker follows rules that are new to it: laws 3 and 7."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError

from notifier.rules.category import LANES
from notifier.scripts.keys import in_force
from notifier.scripts.pooled import send
from notifier.store.partitions import Partition
from notifier.testing.embedded import EmbeddedRedis
from notifier.units import UNITS
from tests.harness.serving import SETTINGS, serve
from workers.served import TURN_MS, Served

LATER = 4_000_000_000 * UNITS["s"]
USERS = 1_600  # more than are looked at in one call

Serve = Callable[..., Served]


@asynccontextmanager
async def workers_of(redis_server: EmbeddedRedis) -> AsyncIterator[tuple[Serve, AsyncRedis]]:
    """What makes workers, each of the version of its rules and some lanes, and their client."""
    async with AsyncRedis.from_url(redis_server.url, protocol=2) as client:
        yield partial(serve, client), client


def wait(redis: Redis, users: int = 1) -> None:
    """Let users wait in each lane for long, by the rules of others."""
    redis.hsetnx("notifier:leaders", "#rules", "others")
    for lane in LANES:
        redis.zadd(f"notifier:wakeups:{lane}", {f"user-{n}": LATER for n in range(users)})


def waiting(redis: Redis) -> list[int]:
    """How many wait for long yet, in each lane."""
    return [redis.zcount(f"notifier:wakeups:{lane}", LATER, "+inf") for lane in LANES]


def walked(redis: Redis) -> list[int]:
    """When rules were taken up last, and until when that is seen to."""
    fields: list[Any] = redis.hmget("notifier:leaders", "#since", "#walked")
    return [int(at) for at in fields]


async def test_a_walk_is_over_all_lanes(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """It serves all who changed before it, and these may serve other lanes than who walks; and no more than once."""
    wait(redis, USERS)
    async with workers_of(redis_server) as (serve, _):
        await serve("new", ["urgent"]).sweep()
        assert waiting(redis) == [0, 0, 0]
        assert len({*walked(redis)}) == 1
        wait(redis)
        await serve("new", ["bulk"]).sweep()
        assert waiting(redis) == [1, 1, 1], "it begins with the rules that all follow"


async def test_a_walk_is_made_up_for_where_its_worker_has_died(
    redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any other, also by one that followed these rules before."""
    wait(redis, USERS)
    async with workers_of(redis_server) as (serve, _):
        asked = []
        first, second = serve("new"), serve("new", name="second")

        def dies(*args: Any) -> Any:
            asked.append(args)
            if len(asked) == 5:
                raise RedisConnectionError("Connection reset by peer")
            return send(*args)

        with monkeypatch.context() as patch:
            patch.setattr("notifier.scripts.loader.send", dies)
            with pytest.raises(RedisConnectionError):
                await first.sweep()
        assert 0 < sum(waiting(redis)) < 3 * USERS
        await second.sweep()
        assert sum(waiting(redis)) > 0, "the first may be about it still"
        redis.delete("notifier:reload:turn")  # as time does
        await second.sweep()
        assert waiting(redis) == [0, 0, 0]


async def test_a_change_of_which_redis_is_told_late_is_made_up_for(
    redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis was away when the worker had changed."""

    def refuses(*_: Any) -> Any:
        raise RedisConnectionError("Connection reset by peer")

    async with workers_of(redis_server) as (serve, _):
        served = serve("old")
        await served.sweep()
        await served.take_up(SETTINGS.policies(), "new")
        wait(redis)
        with monkeypatch.context() as patch:
            patch.setattr("notifier.scripts.loader.send", refuses)
            with pytest.raises(RedisConnectionError):
                await served.sweep()
        assert served.is_behind
        redis.delete("notifier:reload:turn")
        await served.sweep()
        assert (served.is_behind, waiting(redis)) == (False, [0, 0, 0])


async def test_a_walk_that_redis_lost_with_the_change_of_this_worker_alone_is_made(
    redis: Redis, redis_server: EmbeddedRedis
) -> None:
    """Another one had taken up the same rates before, and walked: Redis crashes back to that."""
    async with workers_of(redis_server) as (serve, _):
        await serve("new").sweep()
        others = walked(redis)[0]
        served = serve("old")
        await served.sweep()
        await served.take_up(SETTINGS.policies(), "new")
        await served.sweep()
        redis.hset("notifier:leaders", mapping={"#rules": "new", "#since": others, "#walked": others})
        wait(redis)
        redis.delete("notifier:reload:turn")
        await served.sweep()
        assert waiting(redis) == [0, 0, 0]
        assert walked(redis)[0] == walked(redis)[1] > others


async def test_rules_that_were_followed_for_a_moment_are_made_up_for(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Between two sweeps the rates changed and changed back: what was set meanwhile may be too late."""
    async with workers_of(redis_server) as (serve, _):
        served = serve("old")
        await served.sweep()
        await served.take_up(SETTINGS.policies(), "new")
        wait(redis)
        await served.take_up(SETTINGS.policies(), "old")
        redis.delete("notifier:reload:turn")
        await served.sweep()
        assert waiting(redis) == [0, 0, 0]


async def test_who_may_not_walk_yet_sweeps_again_soon(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Where there are many partitions, the next turn of this one would be late: seconds of waiting by old rates."""
    async with workers_of(redis_server) as (serve, _):
        served = serve("old")
        await served.sweep()
        await served.take_up(SETTINGS.policies(), "new")
        wait(redis)
        redis.set("notifier:reload:turn", "another", px=TURN_MS)
        await served.sweep()
        assert (served.is_behind, waiting(redis)) == (True, [1, 1, 1])
        redis.delete("notifier:reload:turn")
        await served.sweep()
        assert (served.is_behind, waiting(redis)) == (False, [0, 0, 0])


async def test_a_clock_that_is_set_back_after_a_walk_does_not_put_off_the_next(
    redis: Redis, redis_server: EmbeddedRedis
) -> None:
    """Law 7: the turn of the walk before lapses by Redis's clock, and lasts for as long as the step from then on."""
    async with workers_of(redis_server) as (serve, _):
        served = serve("old")
        await served.sweep()
        await served.take_up(SETTINGS.policies(), "new")
        wait(redis)
        redis.set("notifier:reload:turn", "another", px=3_600_000)
        await served.sweep()
        assert (served.is_behind, waiting(redis)) == (False, [0, 0, 0])


async def test_a_partition_that_refuses_a_worker_for_now_does_not_end_it(
    redis: Redis, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its node becomes a replica just then. It is claimed at the next beat."""

    async def refuses(*_: Any) -> Any:
        raise ReadOnlyError("You can't write against a read only replica.")

    async with workers_of(redis_server) as (serve, _):
        served = serve("")
        served.at, served.engine._looked_at = Partition(0, 2, in_force(), redis), 1.0
        with monkeypatch.context() as patch:
            patch.setattr("notifier.store.exchange.answer", refuses)
            await served.tend({}, 60)
        assert (served.refused, redis.exists("notifier:partition")) == (None, 0)
        await served.tend({}, 60)
        assert (served.refused, redis.exists("notifier:partition")) == (None, 1)


async def test_a_partition_has_of_a_worker_what_rq_would_write(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """RQ knows the worker in the first partition alone. In each other one, too, RQ's tools see it, what has lapsed
    leaves RQ's registries, and the name of who was killed is removed.
    """
    lanes, registries = ["urgent", "bulk"], ["failed", "finished"]
    names = ["rq:workers", *(f"rq:workers:{lane}" for lane in lanes)]
    redis.sadd("rq:workers", "rq:worker:killed")
    for registry in registries:
        redis.zadd(f"rq:{registry}:bulk", {"lapsed": 1, "kept": 2**40})
    async with workers_of(redis_server) as (serve, _):
        served = serve("", lanes)
        served.at, served.engine._looked_at = Partition(0, 2, in_force(), redis), 1.0
        await served.tend({"hostname": "here"}, 60)
        assert [redis.smembers(name) for name in names] == [{b"rq:worker:w"}] * 3
        assert (redis.hget("rq:worker:w", "hostname"), redis.ttl("rq:worker:w") > 0) == (b"here", True)
        assert redis.exists("notifier:looked")
        assert [redis.zrange(f"rq:{registry}:bulk", 0, -1) for registry in registries] == [[b"kept"]] * 2
        await served.leave(registered=True)
        assert redis.exists("rq:worker:w", *names) == 0
