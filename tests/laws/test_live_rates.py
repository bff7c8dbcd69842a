"""Law 7: a changed file applies to what is already waiting, without a restart, a loss or a second send."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from support import Simulators, WorkerProcess, eventually, note, notifier, worker, write_config

from notifier import Notifier
from notifier.embedded import EmbeddedRedis

BACKLOG = 20
SLOW = {"windows": ["1/1h"]}
FAST = {"windows": ["10/1s"]}


class Held:
    """What a test of live rates works with."""

    def __init__(
        self, path: Path, url: str, simulators: Simulators, workers: list[WorkerProcess], sender: Notifier
    ) -> None:
        self.path, self.url, self.simulators, self.workers, self.sender = path, url, simulators, workers, sender

    def rates(self, user: object) -> None:
        """Replace the file, as a deployment does."""
        new = write_config(self.path.parent / "new", self.url, self.simulators.providers(), user=user)
        new.replace(self.path)

    def logged(self, event: str) -> int:
        """How many workers have logged an event."""
        return sum(event in one.log for one in self.workers)


@pytest.fixture
def simulators(tmp_path: Path) -> Iterator[Simulators]:
    with Simulators(tmp_path / "simulators") as running:
        yield running


@pytest.fixture
def held(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, simulators: Simulators) -> Iterator[Held]:
    """Three workers, and a backlog of one user of which the rules let one go in an hour."""
    with contextlib.ExitStack() as stack:
        path = write_config(tmp_path, redis_server.url, simulators.providers(), user=SLOW)
        workers = [stack.enter_context(worker(path, name=f"live-{n}")).ready(redis) for n in range(3)]
        sender = stack.enter_context(notifier(path))
        sender.send_many(note("ann", f"live-{n:02}") for n in range(BACKLOG))
        eventually(lambda: simulators.titles("live-") and redis.zcard("rq:scheduled:default") == BACKLOG - 1)
        yield Held(path, redis_server.url, simulators, workers, sender)


def test_a_waiting_backlog_follows_the_new_rates(held: Held) -> None:
    """Held at 1 an hour, drained at 10 a second from the moment the file says so: each once, and in order."""
    held.rates(FAST)
    begun = time.monotonic()
    titles = [f"live-{n:02}" for n in range(BACKLOG)]
    eventually(lambda: len(held.simulators.titles("live-")) == BACKLOG, within_s=15)
    # Two seconds to notice it, one to walk the gates, one for each ten beyond the first, and a slow machine.
    assert time.monotonic() - begun < 10
    assert sorted(held.simulators.titles("live-")) == titles
    assert held.logged("config_taken_up") >= 1


def test_a_broken_file_is_refused_and_the_old_rates_go_on(held: Held) -> None:
    """An unknown unit changes nothing but the log; the next good file is taken up."""
    held.rates({"windows": ["10/fortnight"]})
    eventually(lambda: held.logged("config_refused") == 3, "each worker says so")
    assert all("unknown unit" in one.log for one in held.workers)
    assert len(held.simulators.titles("live-")) == 1
    held.rates(FAST)
    eventually(lambda: len(held.simulators.titles("live-")) == BACKLOG, within_s=15)
