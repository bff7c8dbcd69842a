"""The worker's beat: what it tells RQ by calls that block, it tells beside its event loop."""

import threading
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis

from notifier.settings import load_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import LANES, write_config
from workers import PushWorker
from workers.beat import Beat


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
