"""The worker's beat: what it tells RQ by calls that block, it tells beside its event loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier.settings import load_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import LANES, write_config
from workers import PushWorker


def test_no_call_of_the_beat_blocks_the_loop(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the loop runs, every synchronous call to Redis is made in another thread; the worker is known to RQ."""
    settings = load_settings(write_config(tmp_path, redis_server.url), {})
    by_thread: dict[int, list[Any]] = {}
    known: list[bytes | None] = []

    class Watched(PushWorker):
        def _tend(self, *args: Any) -> None:
            super()._tend(*args)
            known.append(redis.hget(self.key, "state"))
            self.request_stop(15, None)

    connection = Redis.from_url(redis_server.url)
    worker = Watched(list(LANES), name="w", connection=connection, settings=settings)
    execute = connection.execute_command

    def noted(*args: Any, **options: Any) -> Any:
        if worker._loop is not None and worker._served and not worker._beat_ended:
            by_thread.setdefault(threading.get_ident(), []).append(args[0])
        return execute(*args, **options)

    monkeypatch.setattr(connection, "execute_command", noted)
    worker.work(logging_level="WARNING")
    assert known == [b"idle"]
    assert threading.get_ident() not in by_thread
    assert any("HSET" in calls for calls in by_thread.values())
