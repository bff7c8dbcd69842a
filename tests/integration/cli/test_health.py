"""`notifier health`, as a liveness probe runs it, and how a stuck worker looks."""

import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from redis import Redis
from rq.worker import Worker

from notifier.cli import health
from notifier.operations.stats import read_now
from notifier.queue.health import LOOKED, find_workers
from notifier.settings import load_settings, parse_settings
from notifier.store.exchange import exchange
from tests.harness.support import WorkerProcess, eventually, note, notifier, worker, write_config
from tests.integration.conftest import Ran
from workers import PushWorker

Run = Callable[..., tuple[int, str]]
HERE = socket.gethostname()


@pytest.fixture
def run(run: Callable[..., Ran]) -> Run:
    """Run the command; its status, and all that it says."""

    def run_and_join(*arguments: str) -> tuple[int, str]:
        done = run(*arguments)
        return done.status, done.out + done.err

    return run_and_join


def enter(redis: Redis, name: str, *, age_s: float, host: str = HERE, **fields: str) -> None:
    """A worker's entry, as it was `age_s` ago."""
    seconds, us = redis.time()
    redis.sadd("rq:workers", f"rq:worker:{name}")
    told = {"hostname": host, LOOKED: int((seconds - age_s) * 1e6) + us}
    redis.hset(f"rq:worker:{name}", mapping=told | fields)


def test_no_worker_is_not_healthy(run: Run, redis: Redis) -> None:
    """Without a worker of this host neither `health` nor `config status` ends with 0."""
    assert run("health")[0] == 1
    enter(redis, "theirs", age_s=0, host="another-host", rates_version="a")
    status, said = run("health")
    assert (status, HERE in said) == (1, True)
    assert run("health", "--worker", "theirs")[0] == 0
    redis.flushdb()
    assert run("config", "status")[0] == 1


def test_a_burst_has_looked_for_work(run: Run, config: Path) -> None:
    """It ends before its beat has told of a look; `stats` knows all the same that somebody worked."""
    assert "none has ever looked for work" in run("stats")[1]
    with worker(config, "--burst", name="one") as one:
        assert one.process.wait(60) == 0
    assert ": none looks for work, so nothing is sent\n" in run("stats")[1]


def test_a_worker_tells_its_version_what_is_in_flight_and_since_when(run: Run, redis: Redis, config: Path) -> None:
    """Of a real one: the version of the package, and not that of RQ."""
    with worker(config, name="one") as one:
        one.ready(redis)
        eventually(lambda: redis.hget("rq:worker:one", "push_release"), "what it tells of itself")
        (told,) = json.loads(run("health", "--json")[1])["workers"]
    assert (told["version"], told["in_flight"]) == (version("push-throttle"), 0)
    assert told["rates"] == load_settings(config).rates_version
    assert datetime.fromisoformat(told["since"]).tzinfo is not None


def test_any_fresh_look_of_this_host_counts(run: Run, redis: Redis) -> None:
    """What a worker of the same host left behind when it was killed does not make the next one unhealthy."""
    enter(redis, "killed", age_s=100)
    status, said = run("health")
    assert (status, said.rpartition(" looked")[0]) == (1, f"killed on {HERE}: NOT healthy,")
    enter(redis, "next", age_s=5)
    status, said = run("health", "--json")
    told = json.loads(said)
    assert (status, told["healthy"]) == (0, True)
    assert [(w["name"], w["healthy"]) for w in told["workers"]] == [("killed", False), ("next", True)]
    assert run("health", "--worker", "killed")[0] == 1
    assert run("health", "--within", "2s")[0] == 1


def test_a_job_of_rq_keeps_it_healthy(run: Run, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a job blocks the loop for as long as it runs: whoever watches it tells, by Redis's clock, that it does."""
    monkeypatch.setattr(Worker, "maintain_heartbeats", lambda *_: None)
    settings = parse_settings("providers: {fcm: {client: console}}")
    busy = PushWorker(["default"], name="busy", connection=redis, settings=settings)
    enter(redis, "busy", age_s=600, current_job="report")
    assert run("health")[0] == 1
    busy.maintain_heartbeats(None)
    assert run("health")[0] == 0
    enter(redis, "busy", age_s=40)
    assert run("health")[0] == 0
    enter(redis, "busy", age_s=200)
    assert run("health")[0] == 1
    redis.delete(busy.key)
    busy.maintain_heartbeats(None)
    assert not redis.exists(busy.key), "the beat is to register it anew"


def test_a_redis_that_cannot_tell_is_another_status(run: Run, config: Path, redis: Redis) -> None:
    """Where Redis is full or away, the status is 4: a probe can tell that from a stuck worker."""
    enter(redis, "one", age_s=100)
    before = redis.config_get("maxmemory")["maxmemory"]
    redis.config_set("maxmemory", 1)
    try:
        assert run("health")[0] == 4
    finally:
        redis.config_set("maxmemory", before)
    write_config(config.parent, "redis://127.0.0.1:1/0")
    assert run("health")[0] == 4


@contextmanager
def full_disk(redis: Redis) -> Iterator[None]:
    """Redis cannot save its data, and so takes nothing new: a folder stands where its file belongs."""
    folder = Path(*(redis.config_get(name)[name] for name in ("dir", "dbfilename")))
    saves = redis.config_get("save")["save"]
    folder.mkdir()
    redis.config_set("save", "3600 1")
    redis.bgsave()
    eventually(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", "a save that failed")
    try:
        yield
    finally:
        folder.rmdir()
        redis.config_set("save", saves)


def test_a_redis_that_cannot_save_is_said_alone(run: Run, redis: Redis) -> None:
    """The workers are well, and cannot note that they look: nobody is to look for the fault in them."""
    enter(redis, "one", age_s=100)
    why = "cannot save to its disk and takes nothing new (MISCONF); its log says why"
    with full_disk(redis):
        assert run("health") == (4, f"Redis {why}\n")
        assert run("send", "42", "--device", f"fcm:{'x' * 20}", "--title", "hi") == (4, f"Redis {why}\n")
        status, said = run("stats")
        wrong = [line for line in said.splitlines() if line.startswith(("✖", "⚠"))]
        assert (status, wrong) == (0, [f"✖ Redis refuses: it {why}"])
    assert run("health")[0] == 1


def test_a_redis_that_became_a_replica_is_said_alone(run: Run, redis: Redis) -> None:
    """The URL names one that was demoted: no worker can note there that it looks, and a restart helps none."""
    enter(redis, "one", age_s=100)
    why = "is a replica (READONLY); redis.url is to name its primary"
    redis.replicaof("127.0.0.1", 1)
    try:
        assert run("health") == (4, f"Redis {why}\n")
        assert f"✖ Redis refuses: it {why}" in run("stats")[1]
    finally:
        redis.replicaof("NO", "ONE")
    assert run("health")[0] == 1


def test_a_redis_that_evicts_is_told_of(run: Run, redis: Redis) -> None:
    """Workers may have started before the policy was changed: each look says so, as text and as JSON."""
    enter(redis, "one", age_s=0)
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        status, said = run("health")
        assert (status, "maxmemory-policy allkeys-lru" in said) == (0, True)
        assert json.loads(run("health", "--json")[1])["warning"] in said
        assert "✖ Redis evicts: it removes keys when it is full" in run("stats")[1]
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert json.loads(run("health", "--json")[1])["warning"] == ""


def test_any_node_of_a_cluster_that_evicts_is_told_of(run: Run, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node has a policy of its own: not only that of the partition that answers first."""
    enter(redis, "one", age_s=0)
    monkeypatch.setattr(health, "read_now", lambda at: replace(read_now(at), evicts="allkeys-lru"))
    assert "maxmemory-policy allkeys-lru" in run("health")[1]


def test_a_stopped_worker_turns_unhealthy_and_recovers(run: Run, config: Path, redis: Redis) -> None:
    """A process that stands still is seen within the time given, and healthy again once it goes on."""
    with worker(config, name="one") as running:
        running.ready(redis)
        assert run("health", "--within", "20s")[0] == 0
        running.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: run("health", "--within", "2s")[0] == 1, "an unhealthy worker")
            assert redis.hget("rq:worker:one", "state") == b"idle"  # all that RQ would say
        finally:
            running.process.send_signal(signal.SIGCONT)
        eventually(lambda: run("health", "--within", "20s")[0] == 0, "a healthy worker again")


def test_a_look_ahead_of_the_clock_is_of_before_it_was_set_back(run: Run, redis: Redis) -> None:
    """A worker that lives notes a new one at once; one that hangs does not count as healthy for as long as the step."""
    enter(redis, "hangs", age_s=-3600)
    assert run("health", "--within", "20s")[0] == 1
    enter(redis, "hangs", age_s=0)
    assert run("health", "--within", "20s")[0] == 0


def test_a_hanging_loop_is_unhealthy(run: Run, config: Path, redis: Redis) -> None:
    """A worker whose provider blocks its event loop for ever stops looking, and is not healthy."""
    script = str(Path(__file__).parents[1] / "hanging_worker.py")
    with (
        notifier(config) as producer,
        WorkerProcess([sys.executable, script, "--name", "hangs"], config, name="hangs") as w,
    ):
        eventually(lambda: run("health", "--within", "20s")[0] == 0, "a healthy worker")
        looked = exchange(redis, find_workers())[0].age_us
        assert looked < 20_000_000
        producer.send(note("42"))
        eventually(lambda: run("health", "--within", "2s")[0] == 1, "an unhealthy worker")
        w.end(signal.SIGKILL)
