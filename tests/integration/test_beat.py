"""The worker's beat: what it tells RQ by calls that block, it tells beside its event loop."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import AsyncMock, Mock

import pytest
from redis import Redis

from notifier.settings import load_settings, parse_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import LANES, write_config
from workers import PushWorker
from workers.beat import Beat
from workers.loop.turns import Turns
from workers.sending.capacity import Capacity


def test_no_call_of_the_beat_blocks_the_loop(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loop runs, every synchronous call to Redis is made in another thread; the worker is known to RQ."""
    settings = load_settings(write_config(tmp_path, redis_server.url), {})
    threads: set[int] = set()
    watched: list[bool] = []  # while it beats
    known: list[Any] = []

    class Watched(Beat):
        async def __aenter__(self) -> Self:
            watched.append(True)
            return await super().__aenter__()

        async def __aexit__(self, *args: object) -> None:
            await super().__aexit__(*args)
            watched.clear()

        def _tend(self, told: dict[Any, str]) -> None:
            super()._tend(told)
            known.append(redis.hget(worker.key, "state"))
            worker.request_stop(15, None)

    connection = Redis.from_url(redis_server.url)
    worker = PushWorker(list(LANES), name="w", connection=connection, settings=settings)
    ask = connection.connection_pool.get_connection

    def noted(*args: Any, **options: Any) -> Any:
        asked = ask(*args, **options)
        if watched:
            threads.add(threading.get_ident())
        return asked

    monkeypatch.setattr(connection.connection_pool, "get_connection", noted)
    monkeypatch.setattr("workers.push.Beat", Watched)
    worker.work(logging_level="WARNING")
    assert known == [b"idle"]
    assert threads, "it asked"
    assert threading.get_ident() not in threads


class Turn:
    """The lock of a worker's upkeep. Another thread than the loop's gets it once the beat has ended."""

    def __init__(self) -> None:
        self.wanted, self.is_free = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.wanted.set()
            assert self.is_free.wait(60)

    def __exit__(self, *_: object) -> None:
        pass


async def test_a_thread_that_waits_yet_as_the_beat_ends_tells_nothing(redis: Redis) -> None:
    """The worker may have left by then: RQ would know it for minutes, and count its jobs twice."""
    settings = parse_settings("providers: {fcm: {client: console}}")
    worker, turn = PushWorker(["default"], connection=redis, settings=settings), Turn()
    parts = SimpleNamespace(redis=AsyncMock(), turns=Turns(Capacity({}), batch=1, most=1))
    engine = SimpleNamespace(flights=(), suspended_us=0)
    served: Any = SimpleNamespace(engine=engine, parts=parts, refused=None)
    rq_jobs: Any = SimpleNamespace(upkeep=turn)
    async with Beat(worker, [served], Mock(), rq_jobs, reload=None, secrets=None):
        assert await asyncio.to_thread(turn.wanted.wait, 60)
    turn.is_free.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert redis.keys() == []
