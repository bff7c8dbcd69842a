"""A world of one worker at work, which the tests of a module share; each test has users and titles of its own."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import Redis
from rq import Queue

from notifier import Notifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, WorkerProcess, client_of, notifier, queue, worker, write_config


@dataclass(frozen=True)
class AtWork:
    """The worker, who sends to it, and where its messages arrive. folder: on the worker's Python path."""

    redis: Redis
    simulators: Simulators
    producer: Notifier
    worker: WorkerProcess
    folder: Path
    config: Path

    @property
    def lane(self) -> Queue:
        return queue(self.redis)

    def outcomes(self, user: str) -> Counter[str]:
        return Counter(record.outcome for record in self.producer.history(user))


W = TypeVar("W", bound=AtWork)


def world_of(kind: type[W], rates: dict[str, Any], **modules: str) -> Any:
    """A fixture of a module. modules: what the worker can import, by name."""

    @pytest.fixture(scope="module")
    def world(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[W]:
        folder = tmp_path_factory.mktemp("world")
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        with Simulators(folder / "simulators") as simulators:
            config = write_config(folder, redis_server.url, simulators.providers(), **rates)
            with client_of(config) as redis:
                redis.flushdb()
                with notifier(config) as producer, worker(config, python_path=folder) as running:
                    yield kind(redis, simulators, producer, running.ready(redis), folder, config)

    return world
