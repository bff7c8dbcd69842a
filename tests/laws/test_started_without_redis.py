"""A Redis that goes while a worker starts is waited for, as one that goes later (law 8)."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from redis import Redis
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq.worker import Worker
from structlog.testing import capture_logs

from notifier.errors import RedisUnusableError
from notifier.settings import Settings, load_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import LANES, eventually, note, notifier, state, worker, write_config
from tests.laws.test_rq_by_hand import InProcess
from workers.configuration.reload import Reload
from workers.configuration.start import wait_for_redis, when_there

Refusal: TypeAlias = Callable[[Redis], AbstractContextManager[None]]


def says_once_and_goes_on_or_ends(
    worker: InProcess, config: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """Send one, and let the worker start in vain for a while."""
    monkeypatch.setattr("workers.configuration.start.PAUSE_S", 0)
    with notifier(config) as producer, capture_logs() as logged:
        job_id = producer.send(note("anna"))
        worker.work(burst=True, logging_level="CRITICAL")
        assert state(producer, job_id) == ("queued" if stopped else "delivered")
    events = [line["event"] for line in logged]
    assert events.count("limiter_unreachable") == 1
    assert events.count("limiter_reachable") == (not stopped)
    (reason,) = [line["reason"] for line in logged if line["event"] == "limiter_unreachable"]
    assert reason.startswith("Redis does not answer: ")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_redis_that_goes_while_a_worker_starts_is_waited_for(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """After it was registered, and before it knows the rates in force: it says so once, and goes on, or ends."""
    config = write_config(tmp_path, redis_server.url)
    worker = InProcess(list(LANES), connection=redis, settings=load_settings(config, {}), config=config)
    begin, failures = Reload.begin, 3

    async def fails(reload: Reload) -> Settings:
        nonlocal failures
        failures -= 1
        if failures < 0:
            return await begin(reload)
        worker._stop_requested = stopped
        raise RedisTimeoutError("Timeout reading from socket")

    monkeypatch.setattr(Reload, "begin", fails)
    says_once_and_goes_on_or_ends(worker, config, monkeypatch, stopped=stopped)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_redis_that_goes_while_a_worker_registers_is_waited_for(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """It loads its data, then an answer is lost after the entry was written: it says so once, and goes on, or ends."""
    config = write_config(tmp_path, redis_server.url)
    worker = InProcess(list(LANES), connection=redis, settings=load_settings(config, {}), config=config)
    register, failures = Worker.register_birth, [BusyLoadingError("loading"), RedisTimeoutError("lost")]

    def fails(self: Worker) -> None:
        error = failures.pop() if failures else None
        if not isinstance(error, BusyLoadingError):
            register(self)
        if error is not None:
            self._stop_requested = stopped
            raise error

    monkeypatch.setattr(Worker, "register_birth", fails)
    says_once_and_goes_on_or_ends(worker, config, monkeypatch, stopped=stopped)


def test_a_redis_that_goes_while_a_worker_is_made_is_waited_for(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ asks it for its clients then; before that it has told its version, and does not tell its memory any more."""
    info, lost = redis.info, [RedisTimeoutError("lost"), RedisTimeoutError("lost")]
    made = [RedisTimeoutError("Timeout reading from socket"), BusyLoadingError("loading")]

    def told(*section: str) -> object:
        if section and lost:
            raise lost.pop()
        return info(*section)

    def make() -> str:
        if made:
            raise made.pop()
        return "a worker"

    monkeypatch.setattr(redis, "info", told)
    wait_for_redis(redis)
    assert when_there(make) == "a worker"
    assert lost == made == []


def test_a_redis_that_refuses_a_worker_ends_it() -> None:
    """There is nothing to wait for: it is said in one line."""

    def make() -> str:
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

    with pytest.raises(RedisUnusableError, match="Redis is out of memory"):
        when_there(make)


def test_a_worker_that_finds_another_layout_says_which_and_stops(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would not find what waits there. The first worker of all notes its own."""
    config = write_config(tmp_path, redis_server.url)
    worker = InProcess(list(LANES), connection=redis, settings=load_settings(config, {}), config=config)
    redis.set("notifier:layout", "2")
    with notifier(config) as producer:
        job_id = producer.send(note("anna"))
        with pytest.raises(SystemExit) as ended:
            worker.work(burst=True, logging_level="CRITICAL")
        assert ended.value.code == RedisUnusableError.exit_status
        assert "keys of layout 2, and this version knows layout 1" in capsys.readouterr().err
        assert (Worker.all(redis), state(producer, job_id)) == ([], "queued")
        redis.delete("notifier:layout")
        worker.work(burst=True, logging_level="CRITICAL")
        assert (redis.get("notifier:layout"), state(producer, job_id)) == (b"1", "delivered")


@contextmanager
def without_replicas(redis: Redis) -> Iterator[None]:
    """Redis wants a replica for each write, and has none."""
    redis.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        redis.config_set("min-replicas-to-write", 0)


@contextmanager
def busy(redis: Redis) -> Iterator[None]:
    """Somebody's script goes on without end."""
    redis.config_set("lua-time-limit", 1)
    try:
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(redis.eval, "while true do end", 0)
            eventually(lambda: is_busy(redis), "a script that takes long")
            yield
            redis.script_kill()
            assert "Script killed" in str(running.exception())
    finally:
        redis.config_set("lua-time-limit", 5000)


def is_busy(redis: Redis) -> bool:
    try:
        return not redis.ping()
    except ResponseError as error:
        return str(error).startswith("BUSY")


@pytest.mark.parametrize(("refuses", "word"), [(without_replicas, "NOREPLICAS"), (busy, "BUSY")])
def test_a_worker_that_starts_while_redis_refuses_waits_as_one_that_runs(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, refuses: Refusal, word: str
) -> None:
    """What passes is waited for: it says once for what, and delivers when it is over."""
    config = write_config(tmp_path, redis_server.url)
    with notifier(config) as producer:
        job_id = producer.send(note("anna"))
        with ExitStack() as refusing:
            refusing.enter_context(refuses(redis))
            with worker(config) as process:
                eventually(lambda: "limiter_unreachable" in process.log, "the line that says for what it waits")
                refusing.close()
                eventually(lambda: state(producer, job_id) == "delivered", "the delivery")
    (line,) = [line for line in process.log.splitlines() if "limiter_unreachable" in line]
    assert word in line
