"""Laws 2 and 4 where a worker is told to stop under load: nothing twice, nothing late, nothing left to a lease."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier.settings import parse_settings
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.consistency import assert_empty_of_work
from tests.harness.fleet import broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_workers, total
from tests.harness.support import (
    PATIENCE_S,
    Simulators,
    WorkerProcess,
    apns,
    eventually,
    fcm,
    note,
    notifier,
    worker,
    write_config,
)
from workers import PushWorker

# Of so many, so many are with the provider at a time: the others wait in the worker. Fewer than a worker sends at once
# by a route of which it knows nothing yet, see `workers/sending/capacity.py`.
COUNT, STREAMS = 15, 5
LEASE_S = 120


def test_workers_replaced_under_load_send_each_once() -> None:
    """SIGTERM to one worker after the other, each replaced: as many arrivals as notifications."""
    of = {n: (f"u{n % 30}", "default") for n in range(900)}
    rates = {"user": {"windows": ["10/1s"]}, "worker": {"lease": f"{LEASE_S}s", "grace": "30s"}}
    with start_fleet(rates, workers=3, latency_ms=100, apns={"timeout": "8s"}) as fleet:
        with fleet.notifier() as producer:
            producer.send_many(notification(user, n) for n, (user, _) in of.items())
        begun = time.monotonic()
        for goal in (60, 180, 300, 420):
            fleet.await_delivered(goal)
            oldest = fleet.workers.pop(0)
            oldest.send_signal(signal.SIGTERM)
            assert oldest.wait(60) == 0
            fleet.start_worker()
            await_workers(fleet.redis, 3)
        fleet.await_ended(len(of))
        seconds = time.monotonic() - begun
        fleet.end_workers()
        for process in fleet.workers:
            process.wait(60)
        assert_empty_of_work(fleet.redis)
        arrivals = fleet.arrivals()
        broken = broken_rules(fleet, sends(arrivals, of))
        retried = total(fleet.redis, "retried")

    assert sorted(int(arrival.data["n"]) for arrival in arrivals) == sorted(of)
    assert retried == 0
    assert broken == []
    assert seconds < LEASE_S, "nothing waited for a lease"


def grace_is_over(process: WorkerProcess) -> None:
    process.process.send_signal(signal.SIGTERM)


def a_second_signal(process: WorkerProcess) -> None:
    process.process.send_signal(signal.SIGTERM)
    eventually(lambda: '"stopping"' in process.log, "its answer to the first")
    time.sleep(1.2)  # one that comes within a second is taken for the same
    assert process.process.poll() is None, "it waits for what is in flight"
    process.process.send_signal(signal.SIGTERM)


def quit_at_once(process: WorkerProcess) -> None:
    process.process.send_signal(signal.SIGQUIT)


@pytest.mark.parametrize(("stop", "grace"), [(grace_is_over, "500ms"), (a_second_signal, "20s"), (quit_at_once, "20s")])
def test_what_is_not_finished_is_given_back_at_once(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, stop: Callable[[WorkerProcess], None], grace: str
) -> None:
    """What no provider has seen yet goes out by another worker at once, and once; what one had is tried again."""
    with Simulators(tmp_path / "simulators", max_streams=STREAMS) as simulators:
        providers = simulators.providers()
        providers["apns"]["timeout"] = "15s"  # so the first five hang until the end
        settings = {"lease": f"{LEASE_S}s", "grace": grace, "backoff": {"first": "50ms", "most": "100ms"}}
        config = write_config(tmp_path, redis_server.url, providers, worker=settings)
        devices = [apns(f"u{n}") for n in range(COUNT)]
        for device in devices[:STREAMS]:
            simulators.answer(device, Reply(200, delay_ms=14_000), Reply(200))
        with worker(config, name="stopped") as stopped, notifier(config) as producer:
            stopped.ready(redis)
            producer.send(note("first", "first"))
            eventually(lambda: total(redis, "delivered") == 1, "the first, after which the provider takes five at once")
            producer.send_many(note(f"u{n}", f"n{n:02}", devices[n]) for n in range(COUNT))
            eventually(lambda: len(simulators.titles("n")) == STREAMS, "five that hang")
            eventually(lambda: redis.zcard("notifier:leases") == COUNT, "all under the lease of one")
            with worker(config, name="other") as other:
                other.ready(redis)
                stop(stopped)
                begun = time.monotonic()
                eventually(lambda: total(redis, "delivered") == 1 + COUNT, "the rest")
                seconds = time.monotonic() - begun
                assert stopped.process.wait(60) == 0
                assert other.end() == 0
        assert_empty_of_work(redis)
        arrived = Counter(simulators.titles("n"))
        stats = {word: total(redis, word) for word in ("returned", "retried", "delivered", "failed")}

    assert arrived == {f"n{n:02}": 2 if n < STREAMS else 1 for n in range(COUNT)}
    assert stats == {"returned": COUNT - STREAMS, "retried": STREAMS, "delivered": 1 + COUNT, "failed": 0}
    assert seconds < LEASE_S / 2, "nothing waited for a lease"


def test_a_terminal_that_closes_ends_a_worker_in_order(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """SIGHUP is taken as SIGTERM: what is in flight is finished, and nothing waits for a lease or comes twice."""
    with Simulators(tmp_path / "simulators") as simulators:
        settings = {"lease": f"{LEASE_S}s", "grace": f"{LEASE_S // 2}s"}
        config = write_config(tmp_path, redis_server.url, simulators.providers(), worker=settings)
        let_go = simulators.hold(apns("ann"))
        with worker(config) as process, notifier(config) as producer:
            process.ready(redis)
            producer.send(note("ann", "in flight", apns("ann")))
            eventually(lambda: simulators.arrived("in flight"), "it to leave")
            process.process.send_signal(signal.SIGHUP)
            eventually(lambda: '"signal": "SIGHUP"' in process.log, "the worker's answer")
            let_go()
            assert process.process.wait(PATIENCE_S) == 0
        assert total(redis, "delivered") == 1
        assert_empty_of_work(redis)


@pytest.fixture
def ignored_hangup() -> Iterator[None]:
    """As `nohup` starts a process; afterwards all handlers are those of before."""
    known = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in known]
    yield
    for number, handler in zip(known, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("ignored_hangup")
def test_a_worker_under_nohup_outlives_its_terminal(redis: Redis) -> None:
    """The other signals stop it, though a shell starts a command in the background with two of them ignored."""
    started = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    started._install_signal_handlers()
    ignored = [n for n in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM) if signal.getsignal(n) is signal.SIG_IGN]
    assert ignored == [signal.SIGHUP]


def test_the_end_waits_for_no_name_server(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """The worker takes its leave of Redis, and the process ends, while lookups of the providers' names hang."""
    with Simulators(tmp_path / "simulators") as simulators:
        providers = yaml.safe_load(yaml.safe_dump(simulators.providers()).replace("127.0.0.1", "localhost"))
        config = write_config(tmp_path, redis_server.url, providers, worker={"grace": "100ms"})
        command = [sys.executable, str(Path(__file__).with_name("mute_worker.py")), "--name", "mute"]
        with WorkerProcess(command, config, name="mute") as mute, notifier(config) as producer:
            mute.ready(redis)
            producer.send(note("ann", "Hello", apns("a")))
            producer.send(note("bob", "Hello", fcm("b")))
            eventually(lambda: len(set(re.findall("looks up .*", mute.log))) == 2, "a lookup for each provider")
            mute.process.send_signal(signal.SIGTERM)
            assert mute.process.wait(PATIENCE_S) == 0
    assert redis.smembers("rq:workers") == set()


class Line:
    """A log whose line is interrupted by a signal, and which, as a buffered file, takes no second one meanwhile."""

    def __init__(self) -> None:
        self._writing = False

    def info(self, *_: object, **__: object) -> None:
        """Write a line."""
        if self._writing:
            raise RuntimeError("reentrant call")
        self._writing = True
        os.kill(os.getpid(), signal.SIGTERM)
        self._writing = False


def test_a_signal_in_the_middle_of_a_line_of_the_log_stops_the_worker(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is told to stop, and the line is finished."""
    stopped = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    line = Line()
    monkeypatch.setattr(stopped, "_structlog", line)
    before = signal.signal(signal.SIGTERM, stopped.request_stop)
    try:
        line.info("delivered")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped._stop_requested


def test_the_end_does_not_wait_for_the_thread_that_listens(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ's thread is told to end before it reads that nothing is subscribed any more: it would wait for a minute."""
    stopped = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    stopped.subscribe()
    thread, unsubscribe = stopped.pubsub_thread, stopped.pubsub.unsubscribe

    def unsubscribe_and_be_read() -> None:
        with contextlib.suppress(RedisConnectionError):  # it may have come to its end by itself, just now
            unsubscribe()
        thread.join(PATIENCE_S)

    monkeypatch.setattr(stopped.pubsub, "unsubscribe", unsubscribe_and_be_read)
    stopped.unsubscribe()
    ended = not thread.is_alive()
    thread.stop()
    stopped.pubsub.subscribed_event.set()  # so that it ends in any case
    thread.join()
    assert ended


@pytest.mark.parametrize("error", [RedisConnectionError, RedisTimeoutError])
def test_the_thread_that_listens_logs_no_outage(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[RedisError]
) -> None:
    """It tries again every two seconds; the engine has logged once that Redis is away."""
    worker = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    monkeypatch.setattr("workers.push.HEARS_AGAIN_S", 0.0)
    worker._pubsub_exception_handler(error("away"), None, None)
    assert caplog.text == ""


def test_a_thread_that_listens_still_is_not_told_of(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Where Redis hangs it outlives the end, and fails when its connection is closed under it."""
    stopped = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    stopped.subscribe()
    stopped.unsubscribe()
    closed = ValueError("argument must be an int, or have a fileno() method.")
    stopped._pubsub_exception_handler(closed, stopped.pubsub, stopped.pubsub_thread)
    assert "pubsub thread exiting" not in caplog.text


def test_the_connection_of_a_thread_that_listens_may_be_closed_twice(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has its end meanwhile, and redis-py's closing is not for two at once."""
    stopped = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    stopped.subscribe()
    thread, close = stopped.pubsub_thread, stopped.pubsub.close

    def closed_meanwhile() -> None:
        close()
        if threading.current_thread() is not thread:
            raise AttributeError("'NoneType' object has no attribute 'deregister_connect_callback'")

    with monkeypatch.context() as patch:
        patch.setattr(stopped.pubsub, "close", closed_meanwhile)
        stopped.unsubscribe()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
