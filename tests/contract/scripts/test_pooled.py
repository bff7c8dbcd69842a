"""Calls of a limiter over a client's pool: whatever the client, they do what redis-py's own commands do."""

import asyncio
import os
from typing import Any

import pytest
import redis as redis_py
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.limiter import AsyncLimiter, Hold, Limiter, Permit
from notifier.scripts.connection_wait import make_whole
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.forks import exit_of_fork

OPTIONS: list[dict[str, Any]] = [{}, {"decode_responses": True}, {"single_connection_client": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_client_will_do(redis: Redis, redis_server: EmbeddedRedis, options: dict[str, Any]) -> None:
    """Whatever the client: also after a server has lost its scripts."""
    with Redis.from_url(redis_server.url, protocol=2, **options) as client:
        limiter = Limiter(client, namespace="n")
        permit = limiter.check("k", "2/day")
        redis.script_flush()
        assert isinstance(limiter.acquire("k", "2/day"), Permit)
        assert isinstance(limiter.acquire("k", "2/day"), Hold)
        assert limiter.refund(permit)
        assert limiter.count("k", last="1d") == 1


@pytest.mark.parametrize("options", OPTIONS)
async def test_every_asyncio_client_will_do(redis: Redis, redis_server: EmbeddedRedis, options: dict[str, Any]) -> None:
    """As with asyncio."""
    async with AsyncRedis.from_url(redis_server.url, protocol=2, **options) as client:
        limiter = AsyncLimiter(client, namespace="n")
        await limiter.acquire("k", "2/day")
        redis.script_flush()
        assert isinstance(await limiter.acquire("k", "2/day"), Permit)
        assert isinstance(await limiter.acquire("k", "2/day"), Hold)


async def test_a_connection_that_redis_has_closed_is_no_reason_to_refuse(
    redis: Redis, redis_server: EmbeddedRedis
) -> None:
    """Redis closes what is idle for long; the next call goes over a connection of its own."""
    limiter = Limiter.from_url(redis_server.url, namespace="n")
    limiter.acquire("k", "5/day")
    redis.client_kill_filter(_type="normal", skipme=True)
    assert isinstance(limiter.acquire("k", "5/day"), Permit)
    async with AsyncLimiter.from_url(redis_server.url, namespace="n") as limiter:
        await limiter.acquire("k", "5/day")
        async with AsyncRedis.from_url(redis_server.url) as other:
            await other.client_kill_filter(_type="normal", skipme=True)  # the event loop learns of it meanwhile
        assert isinstance(await limiter.acquire("k", "5/day"), Permit)


@pytest.mark.usefixtures("redis")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_that_are_forked_give_permits_of_their_own(redis_server: EmbeddedRedis) -> None:
    """A limiter that was made and used before a fork counts for each child what it admits: no permit is another's."""
    limiter = Limiter.from_url(redis_server.url, namespace="n")
    limiter.acquire("k", "1000/day")
    children = []
    for _ in range(3):
        if not (child := os.fork()):
            code = 1
            try:
                answers = limiter.acquire_many([("k", "1000/day")] * 50)
                code = int(any(isinstance(answer, Hold) for answer in answers))
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert limiter.count("k", last="1d") == 151


@pytest.mark.usefixtures("redis")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_leaves_what_its_parents_event_loop_has_alone(redis_server: EmbeddedRedis) -> None:
    """Its child would write on the parent's connections, and the parent would read what it is answered."""

    async def refused(limiter: AsyncLimiter) -> None:
        for call in (limiter.acquire("k", "1000/day"), limiter.reset("k"), limiter.aclose()):
            with pytest.raises(RuntimeError, match="another process"):
                await call

    async def story() -> None:
        async with AsyncLimiter.from_url(redis_server.url, namespace="n") as limiter:
            for n in range(1, 4):
                await limiter.acquire("k", "1000/day")
                assert exit_of_fork(lambda: asyncio.run(refused(limiter))) == 0
                assert await limiter.count("k", last="1d") == n
        assert exit_of_fork(lambda: asyncio.run(used(limiter))) == 0

    async def used(limiter: AsyncLimiter) -> None:
        async with limiter:
            await limiter.acquire("k", "1000/day")

    asyncio.run(story())


@pytest.mark.usefixtures("redis")
def test_the_event_loop_that_has_it_suffers_nothing_from_another(redis_server: EmbeddedRedis) -> None:
    """A limiter belongs to one event loop: another is refused, until the first has closed it."""

    async def use(limiter: AsyncLimiter) -> None:
        async with limiter:
            await limiter.acquire("k", "1000/day")

    async def story(limiter: AsyncLimiter) -> None:
        async with limiter:
            for n in range(1, 3):
                await limiter.acquire("k", "1000/day")
                with pytest.raises(RuntimeError, match="another event loop"):
                    await asyncio.to_thread(asyncio.run, use(limiter))
                assert await limiter.count("k", last="1d") == n
        await asyncio.to_thread(asyncio.run, use(limiter))

    asyncio.run(story(AsyncLimiter.from_url(redis_server.url, namespace="n")))


@pytest.mark.usefixtures("redis")
def test_a_crowd_may_use_it_in_each_event_loop_in_turn(redis_server: EmbeddedRedis) -> None:
    """Once it was closed in the one before, in which calls have waited for a connection."""
    limiter = AsyncLimiter.from_url(f"{redis_server.url}?max_connections=2", namespace="n")

    async def use() -> list[Permit | Hold]:
        async with limiter:
            return await asyncio.gather(*(limiter.acquire("k", "1000/day") for _ in range(5)))

    assert all(asyncio.run(use()) + asyncio.run(use()))


@pytest.mark.usefixtures("redis")
def test_an_event_loop_that_ended_without_closing_it_still_has_it(redis_server: EmbeddedRedis) -> None:
    """Its connections and locks are of no use elsewhere: each call says so, none that the event loop is closed."""
    limiter = AsyncLimiter.from_url(redis_server.url, namespace="n")

    async def use() -> None:
        await limiter.acquire("k", "1000/day")
        await limiter.redis.aclose()

    asyncio.run(use())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="another event loop: make one for each, or close it there"):
            asyncio.run(use())


@pytest.mark.skipif(not hasattr(redis_py, "DriverInfo"), reason="redis-py 7.1 and newer look it up")
def test_the_version_of_redis_py_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each connection, and not for each call on a cluster, which makes its pool whole again: it takes 1 ms."""
    client = make_whole(Redis())
    monkeypatch.setattr(redis_py, "DriverInfo", lambda: pytest.fail("looked up again"))
    monkeypatch.setattr("redis.utils.get_lib_version", lambda: pytest.fail("looked up again"))
    make_whole(client).connection_pool.make_connection()
