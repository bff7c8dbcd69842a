"""Idle workers: when they look, whatever becomes of their connections, of their leader or of their end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.queue import calls
from notifier.queue.circuits import FAR_US
from notifier.queue.leaders import hand_over, leader_key
from notifier.scripts.loader import run, run_async
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import eventually
from workers.loop.idle import IdleWorker

MANY = 8_000  # engines in a process: each by itself looks every 1,000 s


@asynccontextmanager
async def some(server: EmbeddedRedis, count: int, engines: int = 1) -> AsyncIterator[tuple[Any, list[IdleWorker]]]:
    """A client, and workers of the same lane that are closed in the end."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncRedis.from_url(server.url, protocol=2))
        workers = [
            IdleWorker(blocking, client, f"w{n}", ["default"], engines)
            for n in range(1, count + 1)
            for blocking in [AsyncRedis.from_url(server.url, protocol=2, socket_timeout=None)]
        ]
        for idle in workers:
            stack.push_async_callback(idle.close)
        yield client, workers


@asynccontextmanager
async def two(server: EmbeddedRedis, engines: int = 1) -> AsyncIterator[tuple[Any, IdleWorker, IdleWorker]]:
    """As `some`, for two workers."""
    async with some(server, 2, engines) as (client, (first, second)):
        yield client, first, second


def listening(redis: Redis) -> int:
    """How many wait for a call."""
    return [client["cmd"] for client in redis.client_list()].count("blpop")


@pytest.mark.parametrize("lost", ["blmove", "blpop"])
async def test_it_looks_when_nobody_listens_any_more(redis_server: EmbeddedRedis, redis: Redis, lost: str) -> None:
    """A node that dies closes what waits there for a push or a call: a look finds the one that took over."""

    def listening() -> list[dict[str, Any]]:
        return [client for client in redis.client_list() if client["cmd"] in {"blmove", "blpop"}]

    async with AsyncExitStack() as stack:
        clients = [AsyncRedis.from_url(redis_server.url, protocol=2) for _ in range(2)]
        stack.push_async_callback(clients[1].aclose)
        idle = IdleWorker(*clients, "w1", ["default"], MANY)
        stack.push_async_callback(idle.close)
        await idle.wait(None)  # takes the lead
        waiting = asyncio.create_task(idle.wait(None))
        await asyncio.to_thread(eventually, lambda: len(listening()) == 2, "it to listen")
        for client in listening():
            if client["cmd"] == lost:
                redis.client_kill_filter(_id=client["id"])
        async with asyncio.timeout(60):
            await waiting
        assert idle.leads


class Deaf(AsyncRedis):
    """A client that swallows the first cancelling of a call that blocks, as one that is being connected anew may."""

    async def blpop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            await super().blpop(*args, **kwargs)
        except asyncio.CancelledError:
            await super().blpop(*args, **kwargs)


async def test_it_ends_though_a_client_is_deaf_to_the_first_cancelling(
    redis_server: EmbeddedRedis, redis: Redis
) -> None:
    """A worker that stops would wait for its calls that block, a minute each."""
    async with AsyncRedis.from_url(redis_server.url, protocol=2) as client:
        blocking = Deaf.from_url(redis_server.url, protocol=2, socket_timeout=None)
        idle = IdleWorker(blocking, client, "w1", ["default"], MANY)
        await idle.wait(None)  # takes the lead
        waiting = asyncio.create_task(idle.wait(None))
        await asyncio.to_thread(eventually, lambda: [c for c in redis.client_list() if c["cmd"] == "blpop"], "a call")
        waiting.cancel()
        async with asyncio.timeout(30):
            await idle.close()


async def test_who_follows_looks_when_it_is_called_or_leads(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Two that looked by their own timers would take the same backlog: one the first of it, and the other in vain."""
    async with two(redis_server) as (_, leader, follower):
        assert await leader.wait(None)
        following = asyncio.create_task(follower.wait(None))
        for due_in_s in (0.3, 3600.0):  # it looks every second all the same, as a call may be lost
            assert await leader.wait(due_in_s)
        assert not await following, "its time is up, and the other one leads"

        async with asyncio.timeout(60):
            while not await follower.wait(None):  # w1 says no more that it leads
                pass
        assert follower.leads

    redis.flushdb()
    # Of many engines, because their lead does not lapse meanwhile, nor does a follower's wait end by itself.
    async with two(redis_server, MANY) as (_, leader, follower):
        assert await leader.wait(None)
        called = asyncio.create_task(follower.wait(None))
        await asyncio.to_thread(eventually, lambda: listening(redis) == 1, "a call")
        redis.rpush(leader_key("handover", ["default"]), "1")
        assert await called
        assert not follower.leads


@pytest.mark.parametrize("alone", [True, False])
def test_who_yields_lets_another_lead(redis_server: EmbeddedRedis, redis: Redis, alone: bool) -> None:
    """The one that waits for the leader is called, and leads; where nobody waits, the leader looks and leads again."""

    async def story() -> None:
        async with two(redis_server, MANY) as (_, leader, follower):
            assert await leader.wait(None)
            if alone:
                assert await leader.wait(None, yields=True)
                assert not leader.leads
                assert await leader.wait(None)
                assert leader.leads
                return
            following = asyncio.create_task(follower.wait(None))
            await asyncio.to_thread(eventually, lambda: listening(redis) == 1, "the follower to listen")
            yielding = asyncio.create_task(leader.wait(None, yields=True))
            async with asyncio.timeout(60):
                assert await following
            assert await follower.wait(None)
            assert (leader.leads, follower.leads, yielding.done()) == (False, True, False)
            leader.wake.set()
            await yielding

    asyncio.run(story())


async def outlive_a_leader(redis: Redis, idle: IdleWorker) -> None:
    """Let it follow a worker that is dead, until it leads itself."""
    redis.set(leader_key("leader", ["default"]), "dead", px=500)
    while not await idle.wait(None):
        pass


async def test_who_leads_as_another_died_does_not_hear_its_own_call(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """It has followed until then, so it listens for the call by which it now wakes the next."""
    async with two(redis_server, MANY) as (client, leader, follower):
        await outlive_a_leader(redis, leader)
        following = asyncio.create_task(follower.wait(None))
        await asyncio.to_thread(eventually, lambda: listening(redis) == 1, "the follower alone to listen")
        await run_async(client, leader.hand_over())
        async with asyncio.timeout(60):
            assert await following
        assert not leader.wake.is_set()


async def test_who_leads_leaves_the_calls_of_others_to_who_follows(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """It has followed until then, so it listened first; but a worker with too much to do calls one more than it."""
    async with two(redis_server, MANY) as (_, leader, follower):
        await outlive_a_leader(redis, leader)
        leading = asyncio.create_task(leader.wait(None))
        following = asyncio.create_task(follower.wait(None))
        await asyncio.to_thread(eventually, lambda: listening(redis) == 2, "both to listen")
        run(redis, hand_over("busy", ["default"], b"a call"))
        done, _ = await asyncio.wait([leading, following], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert done == {following}
        leader.wake.set()
        await leading


async def test_who_is_busy_listens_no_more(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Each of its calls that block ends by itself, and is not made again until it is idle again."""
    async with some(redis_server, 1) as (_, (idle,)):
        assert await idle.wait(None)
        waiting = asyncio.create_task(idle.wait(None))
        await asyncio.to_thread(eventually, lambda: listening(redis) == 1, "it to listen")
        idle.wake.set()
        assert await waiting
        done, _ = await asyncio.wait(idle._listening.values(), timeout=60)
        assert len(done) == 2


def test_a_call_that_nobody_hears_is_forgotten(redis: Redis) -> None:
    """The last worker of some lanes hands over when it ends, or dies as it leads: it leaves nothing in Redis."""
    run(redis, hand_over("w", ["default"], b"a call"))
    assert 0 < redis.ttl(leader_key("handover", ["default"])) <= 60
    redis.hset("notifier:leaders", "default", 4 * FAR_US)
    for job_id, send_at_us in (("a", 3 * FAR_US), ("b", 2 * FAR_US)):
        job = calls.Job(job_id, "default", b"", b"{}", None, send_at_us)
        run(redis, calls.enqueue([job], dedupe_for_us=0, stamp=""))
    woken = leader_key("wake", ["default"])
    assert redis.lrange(woken, 0, -1) == [str(2 * FAR_US).encode()], "the newest alone"
    assert 0 < redis.ttl(woken) <= 60


@pytest.mark.parametrize("key", ["wake", "handover"])
async def test_who_was_the_first_to_listen_passes_on_what_is_for_another(
    redis_server: EmbeddedRedis, redis: Redis, key: str
) -> None:
    """A leader that has handed over still listens for calls to the leader; a follower that is busy, for those to it."""
    async with two(redis_server, MANY) as (client, first, second):
        lanes = ["default"]
        if key == "wake":
            assert await first.wait(None)
            assert not first.leads or await first.wait(0.1)
            await run_async(client, first.hand_over())
            redis.delete(leader_key("handover", lanes))
            assert await second.wait(None)
        else:
            redis.set(leader_key("leader", lanes), "another", px=1_000)
            assert not await first.wait(None), "nobody called, and it is busy from now on"
            redis.set(leader_key("leader", lanes), "another", px=60_000)
        await asyncio.to_thread(eventually, lambda: listening(redis) == 1, "the first to listen")
        waiting = asyncio.create_task(second.wait(None))
        await asyncio.to_thread(eventually, lambda: listening(redis) == 2, "both to listen")
        redis.rpush(leader_key(key, lanes), "a call")
        async with asyncio.timeout(60):
            assert await waiting
        assert not first.wake.is_set()
        assert (first.called, second.called) == (b"", b"a call"), "by its name, so that it goes round once"


@pytest.mark.parametrize("in_trouble", [3, 4])
async def test_what_one_tried_in_vain_comes_to_who_is_in_no_trouble(
    redis_server: EmbeddedRedis, redis: Redis, in_trouble: int
) -> None:
    """However long those who cannot get through either have listened; where nobody can, one of them takes it."""
    async with some(redis_server, 4, MANY) as (_, workers):
        leader, *followers = workers
        for idle in workers[:in_trouble]:
            idle.in_trouble = True
        while not leader.leads:
            await leader.wait(None)
        waiting = []
        for n, idle in enumerate(followers, 1):
            waiting.append(asyncio.create_task(idle.wait(None)))
            await asyncio.to_thread(eventually, lambda n=n: listening(redis) == n, "all to listen")
        yielding = asyncio.create_task(leader.wait(None, yields=True))
        async with asyncio.timeout(60):
            (woken,), rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert woken.result()
        assert in_trouble > 3 or woken is waiting[-1]
        for idle in workers:
            idle.wake.set()
        await asyncio.gather(*rest, yielding)


@pytest.mark.parametrize("lasts_s", [None, 86_400])
async def test_a_lead_that_nobody_set_is_taken(redis_server: EmbeddedRedis, redis: Redis, lasts_s: int | None) -> None:
    """Whatever stands there: what does not lapse as a lead does would keep all from looking."""
    redis.set(leader_key("leader", ["default"]), "junk", ex=lasts_s)
    async with AsyncRedis.from_url(redis_server.url, protocol=2) as client:
        idle = IdleWorker(AsyncRedis.from_url(redis_server.url, protocol=2), client, "w1", ["default"])
        assert await idle.wait(None)
        assert idle.leads
        await idle.close()
