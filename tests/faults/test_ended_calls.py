"""A signal's handler that raises in a call to Redis costs that call alone: of every client, wherever it raises.

So do time limits, such as Celery's. The next call has its own answer, password and database, and a place in the pool.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from redis import RedisCluster as RedisClusterClient
from redis.asyncio import Connection as AsyncConnection
from redis.connection import AbstractConnection

from notifier.limiter import AsyncLimiter, Limiter
from notifier.settings import RedisSettings
from notifier.store.aio import async_of
from notifier.store.connection import client_of
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.cluster import RedisCluster
from tests.faults.sentinel import WatchedRedis
from tests.harness.ended import TimeLimitError, ends_at, goes_on_wherever_ended

ENDED, NEXT = "{53t}ended", "{53t}next"  # in the slot of a fleet that has no partitions
# Where it raises in a `__del__`, Python goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:.*never awaited")
KINDS = ("plain", "sentinel", "cluster", "limiter", "limiter's cluster")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """Where each of these leads; what has places of its own number has few."""
    with (
        EmbeddedRedis(extra_args=("--requirepass", "hunter2")) as alone,
        WatchedRedis() as watched,
        RedisCluster() as cluster,
    ):
        plain = f"redis://:hunter2@127.0.0.1:{alone.port}/3?max_connections=3"
        found = {
            "plain": plain,
            "limiter": plain,
            "sentinel": watched.url.removesuffix("0") + "3",
            "cluster": cluster.url,
            "limiter's cluster": cluster.url.replace(",", "?max_connections=3,"),
        }
        for kind in ("plain", "sentinel", "cluster"):
            with closing(client_of(RedisSettings(url=found[kind]))) as client:
                client.set(ENDED, "ended")
                client.set(NEXT, "next")
        yield found


def client_at(kind: str, url: str) -> Any:
    """One that blocks."""
    return Limiter.from_url(url, namespace="x").redis if "limiter" in kind else client_of(RedisSettings(url=url))


@pytest.fixture
def read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is not read is still on its way when the next call looks whether there is one."""
    monkeypatch.setattr(AbstractConnection, "can_read", lambda *_, **__: False)


def disconnect(client: Any) -> None:
    """Let the next call connect anew."""
    if isinstance(getattr(client, "_made", None), RedisClusterClient):
        client.disconnect_connection_pools()
    else:
        client.connection_pool.disconnect()


@pytest.mark.usefixtures("read_late")
@pytest.mark.parametrize("before", [lambda _client: None, disconnect], ids=["kept", "new"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_call_is_well(kind: str, before: Callable[[Any], object], urls: dict[str, str]) -> None:
    """The handler raises at each call, line and return in turn, while a connection is kept, and while one is made."""
    with closing(client_at(kind, urls[kind])) as client:
        assert client.get(ENDED) == b"ended"
        for event in count(1):
            before(client)
            if not ends_at(event, lambda: client.get(ENDED)):
                break
            assert client.get(NEXT) == b"next", event
        assert event > 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_lock_is_left_behind(kind: str, urls: dict[str, str]) -> None:
    """Another thread's call goes on."""
    with closing(client_at(kind, urls[kind])) as client:
        goes_on_wherever_ended(lambda: client.get(ENDED))


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("where", ["read_response", "send_packed_command"])
async def test_in_asyncio_as_well(kind: str, where: str, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the answer is read, and before a new connection has signed in."""

    async def ends(*_: object, **__: object) -> None:
        raise TimeLimitError

    async def late(*_: object, **__: object) -> bool:
        return False

    url = urls[kind]
    client: Any = (
        AsyncLimiter.from_url(url, namespace="x").redis if "limiter" in kind else async_of(RedisSettings(url=url))
    )
    connection = client.connection_pool.connection_class
    assert await client.get(ENDED) == b"ended"
    if where == "send_packed_command":
        await client.connection_pool.disconnect()
    with monkeypatch.context() as patch:
        patch.setattr(connection, where, ends)
        with pytest.raises(TimeLimitError):
            await client.get(ENDED)
    monkeypatch.setattr(connection, "can_read", late, raising=False)
    assert await client.get(NEXT) == b"next"
    await client.aclose()


async def test_on_a_cluster_in_asyncio_as_well(urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """There redis-py's nodes keep their connections without a pool."""

    async def ends(*_: object, **__: object) -> None:
        raise TimeLimitError

    async with AsyncLimiter.from_url(urls["limiter's cluster"], namespace="x") as limiter:
        await limiter.add(NEXT, 5)
        assert await limiter.count(ENDED, last="1h") == 0
        with monkeypatch.context() as patch:
            patch.setattr(AsyncConnection, "read_response", ends)
            with pytest.raises(TimeLimitError):
                await limiter.count(ENDED, last="1h")
        assert await limiter.count(NEXT, last="1h") == 5
