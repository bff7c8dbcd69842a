"""AsyncNotifier over two Redis: each user's on the user's own, and one that dies or hangs stops its own users alone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from redis import Redis

from notifier import (
    AsyncNotifier,
    Cancellation,
    Hold,
    LimiterUnreachableError,
    NotReplicatedError,
    OverloadedError,
    Permit,
    Preferences,
    RedisUnusableError,
    ShardsUnusableError,
)
from notifier.scripts.keys import redis_key
from notifier.scripts.ownership import HERE, ON_THE_WAY
from notifier.settings import Settings, parse_settings
from notifier.shards.map import home
from notifier.testing.embedded import EmbeddedRedis
from tests.support import note

T = TypeVar("T")
NAMES = ("a", "b")
USERS = [f"user-{n}" for n in range(40)]
OF_A, OF_B = ([user for user in USERS if home(user, NAMES) == name] for name in NAMES)
LATER = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, EmbeddedRedis]]:
    with EmbeddedRedis() as one, EmbeddedRedis() as two:
        yield {"a": one, "b": two}


@pytest.fixture
def shards(servers: dict[str, EmbeddedRedis]) -> Iterator[dict[str, Any]]:
    clients = {name: Redis.from_url(server.url) for name, server in servers.items()}
    for client in clients.values():
        client.flushall()
    yield clients
    for client in clients.values():
        client.close()


def made_for(urls: dict[str, str], **redis: Any) -> Settings:
    document = {
        "redis": {"shards": [{"name": name, "url": url} for name, url in urls.items()], **redis},
        "user": {"windows": ["1/1h"], "max_waiting": 50},
        "categories": {"default": {"lane": "default"}},
        "providers": {"apns": {"client": "console"}, "fcm": {"client": "console"}},
    }
    return parse_settings(json.dumps(document))


def with_notifier(settings: Settings, do: Callable[[AsyncNotifier], Awaitable[T]]) -> T:
    async def session() -> T:
        async with AsyncNotifier.of(settings) as made:
            return await do(made)

    return asyncio.run(session())


@pytest.fixture
def settings(servers: dict[str, EmbeddedRedis]) -> Settings:
    return made_for({name: server.url for name, server in servers.items()})


def accepted(redis: Any) -> int:
    return int(redis.hget(redis_key("stats"), "accepted") or 0)


def test_each_users_are_on_the_users_shard(shards: dict[str, Any], settings: Settings) -> None:
    """What is sent, looked up, cancelled, chosen, limited and forgotten is so where the user lives."""
    ann, bob = OF_A[0], OF_B[0]

    async def session(made: AsyncNotifier) -> None:
        told: list[str] = []
        assert await made.send_many((note(user) for user in USERS), on_accepted=told.extend) == 40
        assert [accepted(shards[name]) for name in NAMES] == [len(OF_A), len(OF_B)]
        for user, name in ((ann, "a"), (bob, "b")):
            status = await made.status(told[USERS.index(user)])
            assert status is not None
            assert (status.state, status.shard) == ("queued", name)
        mine, theirs = told[USERS.index(ann)], told[USERS.index(bob)]
        assert await made.cancel_many([theirs, "x", mine]) == Cancellation(2, (), ("x",))
        assert [record.job_id for record in await made.history(bob)] == [theirs]
        tagged = [await made.send(note(user, tags=["t"], send_at=LATER)) for user in (ann, bob)]
        assert await made.cancel(user=bob, tag="t") == Cancellation(1)
        assert await made.cancel(tagged[0]) == "cancelled"
        await made.users.set(bob, gap="10m")
        assert [len(list(shards[name].hgetall(redis_key("preferences")))) for name in NAMES] == [0, 1]
        assert [entry async for entry in made.users.export()] == [{"user": bob, "gap": "10m"}]
        permit = await made.acquire(bob)
        assert isinstance(permit, Permit)
        assert shards["b"].exists(f"notifier:sent:{{{bob}}}")
        assert isinstance(await made.acquire(bob), Hold)
        assert await made.limiter.refund(permit)
        assert await made.forget(bob) == Cancellation()
        assert await made.users.get(bob) == Preferences()

    with_notifier(settings, session)


def test_all_shards_are_read(shards: dict[str, Any], settings: Settings) -> None:
    """One loop reads the feedback of each, and looks again; `routes` says where a route is held."""
    for name in NAMES:
        told = {"platform": "fcm", "app": "", "reason": "gone", "gone_at": "1", "job_id": "1"}
        shards[name].xadd(redis_key("feedback"), {"token": name * 20, "user": f"of-{name}", **told})
    shards["b"].hset(redis_key("route", "fcm|full"), mapping={"state": "full", "until": "4" + "0" * 15, "room": "0"})
    shards["b"].sadd(redis_key("routes"), "fcm|full")

    async def session(made: AsyncNotifier) -> None:
        assert [gone.user async for gone in made.feedback()] == ["of-a", "of-b"]
        assert [(each.route, each.shard) for each in await made.routes()] == [("fcm", "b")]
        following = made.feedback(follow=True)
        later = asyncio.create_task(anext(following))
        await asyncio.sleep(0)
        shards["b"].xadd(redis_key("feedback"), {"token": "c" * 20, "user": "later", **told})
        assert (await later).user == "later"
        await following.aclose()

    with_notifier(settings, session)


@pytest.mark.usefixtures("shards")
def test_what_is_too_much_is_named_by_its_place(settings: Settings) -> None:
    """Over all shards, as over one."""
    notes = [note(user) for _ in range(51) for user in (OF_A[0], OF_B[0])]
    with pytest.raises(OverloadedError) as caught:
        with_notifier(settings, lambda made: made.send_many(notes))
    assert ([each.place for each in caught.value.refused], caught.value.tried) == ([100, 101], 102)


@pytest.mark.usefixtures("shards")
def test_replicas_of_each_shard_are_waited_for(servers: dict[str, EmbeddedRedis]) -> None:
    """With none the call says what is accepted and not replicated, on either shard."""
    urls = {name: server.url for name, server in servers.items()}
    settings = made_for(urls, wait_replicas=1, socket_timeout="200ms")
    for user in (OF_A[0], OF_B[0]):
        with pytest.raises(NotReplicatedError) as caught:
            with_notifier(settings, lambda made, user=user: made.send(note(user), job_id=f"of-{user}", timeout=30))
        assert caught.value.job_ids == [f"of-{user}"]


def test_a_shard_that_hangs_stops_its_own_users_alone(
    shards: dict[str, Any], servers: dict[str, EmbeddedRedis]
) -> None:
    """The others' are accepted within the deadline, and the shard is named, with the places of what was refused."""

    async def session(made: AsyncNotifier) -> None:
        await made.send(note(OF_A[0]))
        with pytest.raises(ShardsUnusableError, match=r"^shard b: ") as caught:
            await made.send_many([note(user) for user in USERS], timeout=2)
        refused = [place for place, user in enumerate(USERS) if user in OF_B]
        assert (caught.value.shards, list(caught.value.refused)) == (("b",), refused)
        assert accepted(shards["a"]) == 1 + len(OF_A)
        with pytest.raises(ShardsUnusableError, match=r"^shard b: .* does not answer within 0\.09 s"):
            await made.send(note(OF_B[0]), timeout=0.1)
        with pytest.raises(ShardsUnusableError, match=r"^shard b: "):
            await made.status("unknown to the other", timeout=0.2)
        with pytest.raises(LimiterUnreachableError, match=r"^shard b: "):
            await made.acquire(OF_B[0], timeout=0.1)

    with socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        urls = {"a": servers["a"].url, "b": f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"}
        with_notifier(made_for(urls), session)


def test_who_is_on_the_way_is_waited_for(shards: dict[str, Any], settings: Settings) -> None:
    """A user who moves between shards is waited for, and the notification is accepted where the user comes to be."""
    user, moves = OF_A[0], redis_key("moves")
    shards["a"].hset(moves, user, f"{ON_THE_WAY}b")

    async def session(made: AsyncNotifier) -> str:
        sent = asyncio.create_task(made.send(note(user), timeout=timedelta(seconds=30)))
        many = asyncio.create_task(made.send_many([note(user), note(OF_A[1])], timeout=30))
        with pytest.raises(RedisUnusableError):
            await made.send(note(user), timeout=0.1)
        assert not sent.done()
        shards["a"].hset(moves, user, "b")
        shards["b"].hset(moves, user, HERE)
        assert await many == 2
        return await sent

    job_id = with_notifier(settings, session)
    assert shards["b"].exists(f"rq:job:{job_id}")
    assert (shards["a"].llen("rq:queue:default"), shards["b"].llen("rq:queue:default")) == (1, 2)
