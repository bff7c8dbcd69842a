"""More calls at once than a pool has connections: they wait, and Redis that is well is never called unreachable."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import ConnectionPool
from redis import Redis as Client
from redis import asyncio as aio

from notifier import Device, Notification, Notifier
from notifier.limiter import AsyncLimiter, Limiter, Permit
from tests.harness.support import write_config

CROWD = 300
RATES = "5/hour"


@pytest.fixture(autouse=True)
def _long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time: what is tested is that all wait, not for how long."""
    monkeypatch.setattr("notifier.scripts.connection_wait.WITHIN_S", 60.0)


@pytest.fixture
def url(redis: Client, redis_server: Any) -> str:  # noqa: ARG001 - it empties the server
    return redis_server.url


def config_of(url: str, folder: Path) -> Path:
    return write_config(folder, url, redis={"url": url, "socket_timeout": "60s"}, user={"windows": ["10/1h"]})


@pytest.fixture
def handed_in(url: str) -> Iterator[Client]:
    pool = ConnectionPool.from_url(url, protocol=2, max_connections=10)
    yield Client(connection_pool=pool)
    pool.disconnect()


def in_threads(call: Callable[[int], Any]) -> Counter[str]:
    """What so many threads got that all asked at once."""
    together = threading.Barrier(CROWD)

    def ask(n: int) -> str:
        together.wait()
        try:
            return type(call(n)).__name__
        except Exception as error:  # noqa: BLE001 - each counts as what it is
            return repr(error)

    with ThreadPoolExecutor(CROWD) as pool:
        return Counter(pool.map(ask, range(CROWD)))


@pytest.mark.parametrize("on_error", ["raise", "permit", "hold"])
@pytest.mark.parametrize("made", ["url", "config", "handed in"])
def test_threads_wait_for_a_connection(url: str, handed_in: Client, tmp_path: Path, made: str, on_error: Any) -> None:
    """Of 300 threads at once five get a permit and the others are held, however the limiter was made."""
    if made == "url":
        limiter = Limiter.from_url(url, namespace="n", on_error=on_error)
    elif made == "config":
        limiter = Limiter.from_config(config_of(url, tmp_path), namespace="n", on_error=on_error)
    else:
        limiter = Limiter(handed_in, namespace="n", on_error=on_error)
    assert in_threads(lambda _n: limiter.acquire("ada", RATES)) == {"Permit": 5, "Hold": CROWD - 5}
    assert in_threads(lambda _n: limiter.count("ada", last="1h")) == {"int": CROWD}


def test_a_client_that_others_use_too_is_waited_for(handed_in: Client) -> None:
    """A connection that somebody else holds for a while is waited for, with a pool that would refuse at once."""
    taken = [handed_in.connection_pool.get_connection() for _ in range(10)]
    given_back = threading.Timer(0.2, lambda: [handed_in.connection_pool.release(one) for one in taken])
    given_back.start()
    assert isinstance(Limiter(handed_in, namespace="n", on_error="hold").acquire("ada", RATES), Permit)
    given_back.join()


@pytest.mark.parametrize("on_error", ["raise", "permit", "hold"])
@pytest.mark.parametrize("made", ["url", "config", "handed in"])
async def test_tasks_wait_for_a_connection(url: str, tmp_path: Path, made: str, on_error: Any) -> None:
    """As with threads."""
    if made == "url":
        limiter = AsyncLimiter.from_url(url, namespace="n", on_error=on_error)
    elif made == "config":
        limiter = AsyncLimiter.from_config(config_of(url, tmp_path), namespace="n", on_error=on_error)
    else:
        pool = aio.ConnectionPool.from_url(url, protocol=2, max_connections=10)
        limiter = AsyncLimiter(aio.Redis(connection_pool=pool), namespace="n", on_error=on_error)
    answers = await asyncio.gather(*[limiter.acquire("ada", RATES) for _ in range(CROWD)])
    await limiter.redis.connection_pool.disconnect()
    await limiter.aclose()
    assert Counter(type(answer).__name__ for answer in answers) == {"Permit": 5, "Hold": CROWD - 5}


def test_a_notifier_waits_for_a_connection(url: str, tmp_path: Path) -> None:
    """300 threads that send, and that acquire, at once: each is accepted, each gets an answer."""
    with Notifier.from_config(config_of(url, tmp_path)) as notifier:
        device = Device("fcm", "a-token-of-sixteen-letters")
        sent = in_threads(lambda n: notifier.send(Notification(user=f"u{n}", title="t", body="b", devices=[device])))
        asked = in_threads(lambda _n: notifier.acquire("ada"))
    assert sum(count for name, count in sent.items() if "Error" not in name) == CROWD, sent
    assert asked == {"UserPermit": 10, "Hold": CROWD - 10}


async def test_whoever_is_cancelled_gives_the_permit_back(url: str) -> None:
    """wait() that is cancelled at any moment returns no permit, and leaves none in Redis."""
    limiter = AsyncLimiter.from_url(url, namespace="n")
    got = 0
    for n in range(200):
        waiting = asyncio.create_task(limiter.wait("ada", "1000/hour; 300/1m", timeout="1s"))
        for _ in range(n % 20):
            await asyncio.sleep(0)
        was_done = not waiting.cancel()
        (answer,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(answer, Permit) == was_done
        got += was_done
    left = await limiter.count("ada", last="1h")
    await limiter.aclose()
    assert got == left
