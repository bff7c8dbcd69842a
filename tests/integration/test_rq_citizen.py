"""PushWorker among RQ's own tools: `rq worker`, `rq info`, `rq suspend`, its commands, its signals, its pool."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Callback, Queue, Retry, Worker
from rq.command import send_shutdown_command, send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer, PickleSerializer

from notifier import Notifier
from notifier.queue.health import read_others
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import warm
from tests.harness.processes import stop
from tests.harness.support import (
    PATIENCE_S,
    WORKER,
    Simulators,
    WorkerProcess,
    apns,
    clean_environ,
    ends,
    eventually,
    note,
    plain,
    queue,
    rq,
    rq_command,
    scheduled,
    state,
    worker,
    write_config,
)
from workers import PushWorker
from workers.rq.functions import AllowedFunctions

RATES: dict[str, Any] = {"users": {"held": {"windows": ["1/1h"]}, "paced": {"gap": "30ms"}}}
JSON = "rq.serializers.JSONSerializer"


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators) -> Path:
    # What is in flight when a worker is to end, or is held back by a test, is waited for on a busy machine too.
    patient = {"worker": {**WORKER, "lease": "70s", "grace": "30s"}}
    return write_config(tmp_path, redis_server.url, simulators.providers(timeout="60s"), **RATES, **patient)


def rq_worker(config: Path, url: str, *arguments: str, name: str = "worker") -> WorkerProcess:
    """A PushWorker as RQ's own command line starts it."""
    options = ("--worker-class", "workers.PushWorker", "--name", name, "--url", url)
    return WorkerProcess(rq_command("worker", *options, *arguments, "urgent", "default", "bulk"), config, name=name)


def seen(redis: Redis, name: str = "worker") -> Any:
    """A worker as RQ's API finds it."""
    found: Any = eventually(lambda: Worker.find_by_key(f"rq:worker:{name}", connection=redis), f"the worker {name}")
    found.refresh()
    return found


def test_rq_starts_one(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """`rq worker --worker-class workers.PushWorker urgent default bulk` delivers, counts and beats like any other."""
    with rq_worker(config, redis_server.url) as running:
        running.ready(redis)
        told: list[str] = []
        producer.send_many((note(f"u{n}") for n in range(30)), on_accepted=told.extend)
        told.append(producer.send(note("c", category="chat")))
        told.append(producer.send(note("m", category="marketing")))
        for job_id in told:
            ends(producer, job_id, "delivered")
        eventually(lambda: seen(redis).successful_job_count == 32, "its count")
        assert seen(redis).failed_job_count == 0
        dead = simulators.answer(apns("dead"), Reply(410, "Unregistered"))
        ends(producer, producer.send(note("d", "d", dead)), "rejected")
        eventually(lambda: seen(redis).failed_job_count == 1, "its count")
        found = seen(redis)
        assert found.successful_job_count == 32
        assert found.queue_names() == ["urgent", "default", "bulk"]
        assert found.pid == running.process.pid
        assert datetime.now(UTC) - found.last_heartbeat.replace(tzinfo=UTC) < timedelta(seconds=30)
        assert [other.name for other in Worker.all(connection=redis)] == ["worker"]
        assert [other.name for other in PushWorker.all(connection=redis)] == ["worker"]
        assert Worker.count(queue=queue(redis, "bulk")) == 1
        assert running.end() == 0
    assert Worker.all(connection=redis) == []
    assert "Traceback" not in running.log
    (line,) = [line for line in running.log.splitlines() if "stopping" in line]
    assert json.loads(line)["worker"] == "worker", "it is logged as all else"


def test_rq_info_shows_it(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """`rq info` lists the worker, its lanes and what is queued; RQ's registries count what waits and what failed."""
    dead = simulators.answer(apns("info-dead"), Reply(410, "Unregistered"))
    with worker(config) as running:
        running.ready(redis)
        held = [producer.send(note("held")) for _ in range(4)]
        ends(producer, held[3], "waiting")
        ends(producer, held[0], "delivered")
        ends(producer, producer.send(note("info-dead", "info-dead", dead)), "rejected")
        done = rq("info", "--url", redis_server.url)
        assert done.returncode == 0, done.stderr
        assert "1 workers, 1 queues" in done.stdout
        assert "1 failed" in done.stdout
        assert "worker" in rq("info", "--url", redis_server.url, "--only-workers", "--by-queue").stdout
        registry = scheduled(redis)
        assert registry.count == 3
        assert set(registry.get_job_ids()) == set(held[1:])
        assert [state(producer, job_id) for job_id in held[1:]] == ["waiting"] * 3
    producer.send_many(note(f"q{n}", category="marketing") for n in range(7))
    assert "queue bulk 7" in rq("info", "--url", redis_server.url, "--raw").stdout


def test_looking_does_not_fail_what_is_in_flight(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """`rq info` cleans RQ's registries: what a worker holds in flight is not touched by it."""
    slow = apns("looked-at")
    release = simulators.hold(slow)
    with worker(config) as running:
        running.ready(redis)
        sending = producer.send(note("looked-at", "looked-at", slow))
        ends(producer, sending, "sending")
        StartedJobRegistry(queue=queue(redis)).cleanup()
        rq("info", "--url", redis_server.url, "--raw")
        release()
        ends(producer, sending, "delivered")
    assert len(simulators.arrived("looked-at")) == 1


def test_suspend_and_resume(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """Between `rq suspend` and `rq resume` nothing new goes; what is in flight is finished; then all goes."""
    slow = apns("suspend-flight")
    release = simulators.hold(slow)
    with worker(config) as running:
        running.ready(redis)
        flying = producer.send(note("suspend-flight", "suspend-flight", slow))
        ends(producer, flying, "sending")
        assert rq("suspend", "--url", redis_server.url).returncode == 0
        waits = [producer.send(note(f"s{n}", "suspended")) for n in range(3)]
        release()
        ends(producer, flying, "delivered")
        eventually(lambda: redis.hget("rq:worker:worker", "state") == b"suspended", "its state")
        assert not simulators.arrived("suspended")
        assert {state(producer, job_id) for job_id in waits} <= {"queued", "waiting"}
        assert rq("resume", "--url", redis_server.url).returncode == 0
        for job_id in waits:
            ends(producer, job_id, "delivered")
        eventually(lambda: redis.hget("rq:worker:worker", "state") in {b"idle", b"busy"}, "its state")


def test_it_is_idle_and_busy(redis: Redis, config: Path, producer: Notifier, simulators: Simulators) -> None:
    """Its state in RQ follows its work: idle, busy, idle; its heartbeat keeps it alive."""
    slow = simulators.delay(apns("busy"), 900)
    sent: list[str] = []

    def is_busy() -> bool:
        """Whether it says so; as it says it once a second, one more is sent until then."""
        sent.append(producer.send(note(f"user-{len(sent)}", "busy", slow)))
        return redis.hget("rq:worker:worker", "state") == b"busy"

    with worker(config) as running:
        running.ready(redis)
        eventually(lambda: redis.hget("rq:worker:worker", "state") == b"idle", "idle")
        eventually(is_busy, "busy")
        for job_id in sent:
            ends(producer, job_id, "delivered")
        eventually(lambda: redis.hget("rq:worker:worker", "state") == b"idle", "idle again")
        assert redis.ttl("rq:worker:worker") > 60


def test_a_redis_that_came_back_empty_knows_it_again(redis: Redis, config: Path, producer: Notifier) -> None:
    """It works on, so it is in RQ's list of workers, with all that people know it by."""
    with worker(config) as running:
        running.ready(redis)
        eventually(lambda: redis.hget("rq:worker:worker", "rates_version"), "what it tells")
        known = set(redis.hgetall("rq:worker:worker")) - {b"last_heartbeat"}
        redis.flushdb()
        eventually(lambda: known <= set(redis.hgetall("rq:worker:worker")), "its entry")
        assert redis.smembers("rq:workers") == {b"rq:worker:worker"}
        ends(producer, producer.send(note("anna")), "delivered")


def test_a_start_claims_the_keys_once(redis: Redis, config: Path) -> None:
    """As the worker registers; what it claimed before would have to be claimed again, if Redis was emptied since."""
    claims = 0
    with redis.monitor() as monitor, worker(config):
        for command in monitor.listen():
            claims += command["command"].startswith("SET notifier:layout ")
            if "rq:workers" in command["command"].split():
                break
    assert claims == 1


def test_rqs_shutdown_command_is_obeyed(redis: Redis, config: Path, producer: Notifier) -> None:
    """`send_shutdown_command` ends it as a signal does."""
    with worker(config) as running:
        running.ready(redis)
        ends(producer, producer.send(note("anna")), "delivered")
        send_shutdown_command(redis, "worker")
        assert running.process.wait(60) == 0
    assert redis.scard("rq:workers") == 0


def test_a_long_stock_job_ends_within_the_grace(redis: Redis, config: Path) -> None:
    """A stock job that outlasts the grace time does not hold the process beyond it; RQ knows it as failed."""
    config.write_text(
        config.read_text(encoding="utf-8").replace("grace: 30s", "grace: 1s\n  functions: [time]"), encoding="utf-8"
    )
    job = queue(redis).enqueue("time.sleep", 60)
    with worker(config) as running:
        eventually(lambda: redis.hget("rq:worker:worker", "current_job"), "its start")
        assert running.end() == 0  # `end` is not as patient as the job is long
    assert job.get_status().value == "failed"


# A worker that dies between the hand-over of a job to RQ and the fork of its work horse.
MORTAL = """
import os, signal
from workers.rq import compat
from workers.__main__ import main

compat.run_horse = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


@pytest.mark.parametrize("meta", [None, {"user": "u", "category": "c"}])
def test_a_worker_that_dies_before_the_horse_loses_no_job(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, simulators: Simulators, meta: Any
) -> None:
    """RQ finds the job, limited or not, as it finds what any worker abandons: it is tried again, or has failed."""
    config = write_config(
        tmp_path, redis_server.url, simulators.providers(), worker={**WORKER, "functions": ["math.factorial"]}
    )
    lane = queue(redis)
    once, again = (lane.enqueue("math.factorial", 3, meta=meta, retry=retry) for retry in (None, Retry(max=1)))
    for _ in (once, again):
        environ = clean_environ(NOTIFIER_CONFIG=str(config))
        mortal = subprocess.run([sys.executable, "-c", MORTAL], env=environ, timeout=90, check=False)
        assert mortal.returncode == -signal.SIGKILL
        StartedJobRegistry(queue=lane).cleanup(timestamp=4_000_000_000)
    assert [job.get_status() for job in (once, again)] == [JobStatus.FAILED, JobStatus.QUEUED]
    assert FailedJobRegistry(queue=lane).get_job_ids() == [once.id]
    assert lane.get_job_ids() == [again.id]


# A worker that begins its work horse when it has been told to stop the job.
LATE = """
import time
from workers.rq import compat
from workers.__main__ import main

run_horse = compat.run_horse

def run_it_late(worker, job, *rest):
    while job.func_name == "time.sleep" and worker._stopped_job_id is None:
        time.sleep(0.001)
    run_horse(worker, job, *rest)

compat.run_horse = run_it_late
main()
"""


def test_a_job_that_is_stopped_before_the_horse_stops(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, simulators: Simulators
) -> None:
    """It ends as a job that was stopped, and its worker goes on."""
    config = write_config(tmp_path, redis_server.url, simulators.providers(), worker={**WORKER, "functions": ["time"]})
    job = queue(redis).enqueue("time.sleep", 600)
    with WorkerProcess([sys.executable, "-c", LATE], config, name="worker") as late:
        eventually(lambda: job.get_status() is JobStatus.STARTED, "its start")
        send_stop_job_command(redis, job.id)
        eventually(lambda: job.get_status() is JobStatus.STOPPED, "its end")
        next_one = queue(redis).enqueue("time.time")
        eventually(lambda: next_one.get_status() is JobStatus.FINISHED, "the next")
        assert late.process.poll() is None


def test_a_failed_one_is_requeued_by_rqs_command(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """`rq requeue` sends a failed one again; what else they do has tests in laws/test_rq_by_hand."""
    once = simulators.answer(apns("by-hand"), Reply(410, "Unregistered"), Reply(200))
    with worker(config) as running:
        running.ready(redis)
        failed = producer.send(note("by-hand", "by-hand", once))
        ends(producer, failed, "rejected")
        done = rq("requeue", "--url", redis_server.url, "--queue", "default", "--serializer", JSON, failed)
        assert done.returncode == 0, done.stderr
        ends(producer, failed, "delivered")
        assert [arrival.status for arrival in simulators.arrived("by-hand")] == [410, 200]


def test_burst_ends_by_itself(redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier) -> None:
    """In burst mode it ends when nothing is due: with what waits still waiting; so does RQ's `--burst`.

    What RQ has scheduled may be due, too.
    """
    held = [producer.send(note("held")) for _ in range(2)]
    later = producer.send(note("later", send_at=datetime.now(UTC) + timedelta(hours=1)))
    with worker(config, "--burst") as running:
        assert running.process.wait(60) == 0
    assert [state(producer, job_id) for job_id in (*held, later)] == ["delivered", "waiting", "waiting"]
    due = queue(redis).enqueue_in(timedelta(0), "notifier.deliver", kwargs=plain("due", "due"))
    with rq_worker(config, redis_server.url, "--burst") as running:
        assert running.process.wait(60) == 0
    assert state(producer, due.id) == "delivered"
    many = [producer.send(note(f"max-{n}")) for n in range(3)]
    with rq_worker(config, redis_server.url, "--max-idle-time", "1") as running:
        assert running.process.wait(60) == 0
    assert {state(producer, job_id) for job_id in many} == {"delivered"}
    assert redis.scard("rq:workers") == 0


def test_it_finds_the_functions_of_the_folder_that_it_is_started_in(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """As RQ's own command does; a project's jobs run without a PYTHONPATH."""
    config = write_config(tmp_path, redis_server.url, {}, worker={"functions": ["errands_here"]})
    (tmp_path / "errands_here.py").write_text("def double(number):\n    return 2 * number\n", encoding="utf-8")
    job = queue(redis).enqueue("errands_here.double", 21)
    command = [Path(sys.executable).with_name("notifier"), "worker", "--burst"]
    warm.run(command, env=clean_environ(NOTIFIER_CONFIG=str(config)), cwd=tmp_path, timeout=PATIENCE_S)
    assert job.return_value() == 42


def test_its_log_tells_nothing_of_what_a_function_got_or_returned(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """A function may get a message's text: RQ logs the call at info, and what it returned at debug."""
    log = {"format": "json", "level": "debug"}
    config = write_config(tmp_path, redis_server.url, {}, worker={"functions": ["textwrap"]}, log=log)
    job = queue(redis).enqueue("textwrap.dedent", "your code is 991-823")
    with rq_worker(config, redis_server.url, "--burst") as running:
        assert running.process.wait(PATIENCE_S) == 0
    assert job.return_value() == "your code is 991-823"
    assert f"Successfully completed job {job.id}" in running.log
    assert "991-823" not in running.log


def _takes_the_name(redis: Redis, heir: WorkerProcess) -> None:
    """Let the worker that has the name count as hanging, once its heir waits for it."""
    eventually(lambda: '"name_taken"' in heir.log, "it to find the name taken")
    redis.hincrby("rq:worker:worker", "push_looked", -30_000_000)
    pid = str(heir.process.pid).encode()
    eventually(lambda: redis.hget("rq:worker:worker", "pid") == pid, "it to take the name")
    heir.ready(redis)


def test_the_name_of_a_killed_worker_is_taken_by_the_next(redis: Redis, config: Path) -> None:
    """As soon as the killed one counts as hanging, not when RQ forgets it; and not while it lives."""
    with worker(config) as killed:
        killed.ready(redis)
        with worker(config) as namesake:
            assert namesake.process.wait(PATIENCE_S) == 1
        assert "There exists an active worker named 'worker' already" in namesake.log
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait(PATIENCE_S)
    with worker(config) as second:
        _takes_the_name(redis, second)


def test_a_namesake_that_is_stopped_leaves_the_entry_of_who_lives(redis: Redis, config: Path) -> None:
    """Neither one that waits for the name ends that entry, nor one that hung and has lost the name meanwhile."""
    known = {b"rq:worker:worker"}
    with worker(config) as first, contextlib.ExitStack() as goes_on:
        stop(first.ready(redis).process.pid)
        goes_on.callback(first.process.send_signal, signal.SIGCONT)
        with worker(config) as waits:
            eventually(lambda: '"name_taken"' in waits.log, "it to find the name taken")
            assert waits.end() == 0
        assert (redis.hget("rq:worker:worker", "death"), redis.smembers("rq:workers")) == (None, known)
        with worker(config) as heir:
            _takes_the_name(redis, heir)
            goes_on.close()
            assert first.end() == 0
            assert redis.hmget("rq:worker:worker", "pid", "death") == [str(heir.process.pid).encode(), None]
            assert redis.smembers("rq:workers") == known


def test_it_warns_of_rq_workers_on_its_lanes(redis: Redis, config: Path) -> None:
    """They would fail notifications. Workers of other queues, and one that has just begun, are not meant."""
    now = datetime.now(UTC).isoformat()
    for name, queues, birth in (("stock", "high,default", "2020-01-01T00:00:00Z"), ("young", "default", now)):
        redis.hset(f"rq:worker:{name}", mapping={"queues": queues, "birth": birth})
        redis.sadd("rq:workers", f"rq:worker:{name}")
    assert read_others(redis, ["urgent", "high"]) == read_others(redis, ["default"]) == ["stock"]
    assert read_others(redis, ["urgent", "bulk"]) == []
    with worker(config) as running:
        warned = [line for line in running.ready(redis).log.splitlines() if '"other_workers"' in line]
    assert [json.loads(line)["names"] for line in warned] == [["stock"]]


def test_one_lane_is_one_lane(redis: Redis, config: Path, producer: Notifier) -> None:
    """A worker of some lanes leaves the others alone."""
    chat, bulk = producer.send(note("a", category="chat")), producer.send(note("a", category="marketing"))
    with worker(config, "urgent", "--burst") as running:
        assert running.process.wait(60) == 0
    assert state(producer, chat) == "delivered"
    assert state(producer, bulk) == "queued"
    assert redis.llen("rq:queue:bulk") == 1


def test_rqs_pool_runs_several(redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier) -> None:
    """`rq worker-pool` starts as many as it is told, and ends them."""
    options = ("--worker-class", "workers.PushWorker", "--url", redis_server.url, "--num-workers", "2")
    command = rq_command("worker-pool", *options, "urgent", "default", "bulk")
    with WorkerProcess(command, config, name="pool") as pool:
        eventually(lambda: redis.scard("rq:workers") == 2, "two workers")
        told: list[str] = []
        producer.send_many((note(f"p{n}") for n in range(50)), on_accepted=told.extend)
        for job_id in told:
            ends(producer, job_id, "delivered")
        assert pool.end() == 0
    assert redis.scard("rq:workers") == 0


def test_the_procfile_starts_one(redis: Redis, config: Path, producer: Notifier) -> None:
    """The Procfile's line is what a person can type, and Ctrl-C ends it."""
    root = Path(__file__).parents[2]
    line = dict(row.split(": ", 1) for row in (root / "Procfile").read_text(encoding="utf-8").splitlines() if row)
    assert line["worker"].split() == ["notifier", "worker"]
    command = Path(sys.executable).with_name("notifier")
    with WorkerProcess([str(command), "worker"], config, name="unnamed") as running:
        ends(producer, producer.send(note("anna")), "delivered")
        assert redis.scard("rq:workers") == 1
        assert running.end(signal.SIGINT) == 0


def test_it_hears_commands_after_a_reconnect_that_hung(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis was there and did not answer: the thread that hears RQ's commands goes on, as after a lost connection."""
    hung, heard, get_message = threading.Event(), threading.Event(), PubSub.get_message

    def hangs_once(*args: Any, **kwargs: Any) -> Any:
        if not hung.is_set():
            hung.set()
            raise RedisTimeoutError("Timeout connecting to server")
        return get_message(*args, **kwargs)

    monkeypatch.setattr(PubSub, "get_message", hangs_once)
    monkeypatch.setattr("rq.worker.base.time.sleep", lambda _: None)
    hearing = PushWorker(["default"], connection=redis)
    monkeypatch.setattr(hearing, "handle_payload", lambda _: heard.set())
    hearing.subscribe()
    try:
        eventually(lambda: redis.publish(hearing.pubsub_channel_name, "x") and heard.wait(0.01), "the command")
    finally:
        hearing.unsubscribe()


def note_abandoned(job: Job, connection: Redis, *_: object) -> None:
    connection.rpush("abandoned", json.dumps(job.args))


@pytest.mark.parametrize("serializer", [PickleSerializer, JSONSerializer])
@pytest.mark.parametrize("value", [17, PurePath("of-a-class")])
def test_an_abandoned_job_is_read_as_it_was_written(redis: Redis, serializer: Any, value: object) -> None:
    """Law 2: what a dead worker ran fails or is tried again, whatever its meta holds, and its on_failure is called."""
    lane = Queue("default", connection=redis, serializer=serializer)
    meta = {"order": value} if serializer is PickleSerializer else {"order": 17}
    options: Any = {"meta": meta, "on_failure": Callback(note_abandoned)}
    retries = None, Retry(max=1)
    jobs = [lane.enqueue("math.factorial", n, retry=retries[n], **options) for n in range(2)]
    for job in jobs:
        job.set_status(JobStatus.STARTED)
        redis.zadd("rq:wip:default", {f"{job.id}:of-a-dead-worker": job.args[0] + 1})
    lane.connection.delete(lane.key)
    pusher = PushWorker([lane.name], connection=redis)
    pusher._functions = AllowedFunctions([__name__])
    pusher.clean_registries()
    assert [job.get_status() for job in jobs] == [JobStatus.FAILED, JobStatus.QUEUED]
    assert lane.get_job_ids() == [jobs[1].id]
    assert [job.get_meta() for job in jobs] == [meta] * 2
    assert redis.lrange("abandoned", 0, -1) == [b"[0]", b"[1]"]


def test_what_another_worker_left_on_its_way_is_read_as_it_was_written(redis: Redis) -> None:
    """RQ's own moves a job by a list beside the queue, and leaves it there if it is killed. A bomb is not unpacked."""
    lane = Queue("default", connection=redis)
    meta = {"order": 17}
    job = lane.enqueue("math.factorial", 5, meta=meta, retry=Retry(max=1))
    large = lane.enqueue("math.factorial", "9" * 5_500_000)
    between = lane.intermediate_queue
    redis.rename(lane.key, between.key)
    redis.set(between.get_first_seen_key(job.id), 1)
    PushWorker([lane.name], connection=redis).clean_registries()
    assert between.get_job_ids() == []
    assert redis.get(between.get_first_seen_key(large.id)) is None
    assert lane.get_job_ids() == [job.id]
    assert job.get_meta() == meta


@pytest.mark.parametrize("interval", [5, 90])
def test_a_worker_lives_while_a_job_runs(redis: Redis, interval: int) -> None:
    """However seldom RQ is to look at a work horse, the watchdog is fed in between."""
    assert PushWorker(["default"], connection=redis, job_monitoring_interval=interval).job_monitoring_interval <= 30
