"""Jobs of functions that this worker may not run: nothing runs, nothing is lost, and their owner is told what to do."""

import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Callback, Queue, SimpleWorker
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from notifier.errors import SettingsError
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import CONSOLE, WORKER, WorkerProcess, client_of, eventually, queue, rq, worker, write_config
from workers.rq.functions import AllowedFunctions

DEEDS = """
from os import mkdir
from pathlib import Path

def touch(path):
    Path(path).touch()

class Deeds:
    @staticmethod
    def touch(path):
        Path(path).touch()

def marked(path):
    Path(path).touch()

marked.__push_throttled__ = {}
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """A worker that may run the functions of one module, and the queue that it works on."""

    redis: Redis
    worker: WorkerProcess
    folder: Path
    config: Path

    def enqueue(self, function: str, *args: Any, **options: Any) -> Job:
        return queue(self.redis, "default").enqueue(function, *args, **options)

    def is_set_aside(self, job_id: str) -> str:
        """Wait until it is, and return the reason."""
        registry = FailedJobRegistry("default", connection=self.redis)
        eventually(lambda: job_id in registry.get_job_ids(cleanup=False), f"the end of {job_id}")
        result = Job(job_id, connection=self.redis, serializer=JSONSerializer).latest_result()
        assert result is not None
        return result.exc_string or ""


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[Lane]:
    folder = tmp_path_factory.mktemp("forbidden")
    (folder / "deeds.py").write_text(DEEDS, encoding="utf-8")
    (folder / "other.py").write_text(DEEDS + "Path(__file__).with_name('imported').touch()\n", encoding="utf-8")
    (folder / "app.py").write_text("import deeds\n", encoding="utf-8")
    config = write_config(folder, redis_server.url, CONSOLE, worker={**WORKER, "functions": ["deeds", "math.gcd"]})
    with client_of(config) as redis:
        redis.flushdb()
        with worker(config, python_path=folder) as running:
            running.ready(redis)
            yield Lane(redis, running, folder, config)


FORBIDDEN = [
    "os.mkdir",
    "deeds.mkdir",
    "deeds.os.mkdir",
    "deeds.Path.mkdir",
    "deeds.Deeds.touch",
    "other.touch",
    "math.sin",
]


@pytest.mark.parametrize("function", FORBIDDEN)
def test_a_function_that_is_not_named_does_not_run(lane: Lane, function: str) -> None:
    """Neither the function nor the import of its module; the job is kept whole, and the reason says what to do."""
    job = lane.enqueue(function, str(lane.folder / function))
    reason = lane.is_set_aside(job.id)
    assert "worker.functions" in reason
    assert f"rq requeue -S json --queue default {job.id}" in reason
    assert not (lane.folder / function).exists()
    assert not (lane.folder / "imported").exists()
    again = Job.fetch(job.id, connection=lane.redis, serializer=JSONSerializer)
    assert (again.func_name, again.args) == (function, [str(lane.folder / function)])


def test_a_job_with_a_user_of_its_own_is_set_aside(lane: Lane) -> None:
    """Its meta leads it through the user's backlog; nothing is left there, and it costs the user nothing."""
    job = lane.enqueue("os.mkdir", str(lane.folder / "of-a-user"), meta={"user": "ann", "category": "default"})
    lane.is_set_aside(job.id)
    assert not (lane.folder / "of-a-user").exists()
    left = {key.decode() for key in lane.redis.keys("notifier:*{ann}*")}
    histories = {f"notifier:history:{{ann}}:{n}" for n in range(2)}  # one of two, by the date
    assert left <= histories, left  # that it failed, and no send


def test_a_job_written_past_rq_does_not_run(lane: Lane) -> None:
    """What somebody writes who may write queues and jobs is read as anybody's."""
    path = lane.folder / "past-rq"
    data = json.dumps(["os.mkdir", None, [str(path)], {}])
    lane.redis.hset("rq:job:evil", mapping={"data": data, "origin": "default", "status": "queued"})
    lane.redis.rpush("rq:queue:default", "evil")
    lane.is_set_aside("evil")
    assert not path.exists()


@pytest.mark.parametrize("callback", ["on_success", "on_failure", "on_stopped"])
def test_a_callback_that_is_not_named_does_not_run(lane: Lane, callback: str) -> None:
    """A job of an allowed function does not smuggle another one in as its callback."""
    options: Any = {callback: Callback("os.mkdir")}
    job = lane.enqueue("deeds.touch", str(lane.folder / callback), **options)
    assert "os.mkdir" in lane.is_set_aside(job.id)
    assert not (lane.folder / callback).exists()


@pytest.mark.parametrize("function", ["deeds.touch", "deeds.marked"])
def test_what_is_named_runs(lane: Lane, function: str) -> None:
    job = lane.enqueue(function, str(lane.folder / f"{function}-ran"))
    eventually(lambda: job.get_status() is JobStatus.FINISHED, "its end")
    assert (lane.folder / f"{function}-ran").exists()


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_pickles_come_back_whole(lane: Lane) -> None:
    """Jobs of an RQ app on the same queue are not unpickled; RQ's own worker runs them once they are brought back."""
    plain = Queue("default", connection=lane.redis)
    jobs = [plain.enqueue("math.factorial", n) for n in range(3)]
    path = lane.folder / "unpickled"
    evil = pickle.dumps(("math.factorial", None, (Evil(path),), {}))
    lane.redis.hset("rq:job:pickled", mapping={"data": evil, "origin": "default", "status": "queued"})
    lane.redis.rpush("rq:queue:default", "pickled")
    reasons = [lane.is_set_aside(job.id) for job in jobs]
    lane.is_set_aside("pickled")
    assert not path.exists()
    assert lane.redis.ttl(jobs[0].key) > 300 * 86_400
    assert lane.worker.end() == 0
    warnings = [line for line in lane.worker.log.splitlines() if '"not_run"' in line]
    assert len(warnings) == 1
    assert "worker.functions" in warnings[0]
    for reason, job in zip(reasons, jobs, strict=True):
        command = reason.partition("Then: rq ")[2].split()
        assert command == ["requeue", "--queue", "default", job.id]
        done = rq(*command, "--url", _url(lane.redis))
        assert done.returncode == 0, done.stderr
    SimpleWorker([plain], connection=lane.redis).work(burst=True)
    assert [job.return_value() for job in jobs] == [1, 1, 2]


def test_it_goes_back_to_its_queue_once(redis: Redis, tmp_path: Path) -> None:
    """To the end of it, where an RQ worker that waits gets it; only if it comes again is it set aside."""
    config = write_config(tmp_path, _url(redis), CONSOLE)
    with worker(config) as running, redis.monitor() as monitor:
        running.ready(redis)
        job = Queue("default", connection=redis).enqueue("math.factorial", 5)
        seen = []
        for command in monitor.listen():
            words = command["command"].split()
            if command["client_type"] == "lua" and job.id in words:
                seen.append(words[0])
            if "rq:failed:default" in words and words[0] == "ZADD":
                break
    assert seen.count("RPUSH") == 1


def _url(redis: Redis) -> str:
    told = redis.connection_pool.connection_kwargs
    return f"redis://{told['host']}:{told['port']}/{told.get('db') or 0}"


@pytest.mark.parametrize("name", ["no_such_module", "math.no_such", "os.sep"])
def test_a_name_that_leads_nowhere_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=r"worker\.functions"):
        AllowedFunctions([name])


def test_of_what_was_abandoned_a_callback_that_is_named_runs(redis: Redis, tmp_path: Path) -> None:
    """RQ calls it in the worker itself, when it cleans up after a worker that died. No other one is even imported."""
    (tmp_path / "deeds.py").write_text(DEEDS + "def call(job, *_):\n    touch(job.args[0])\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("from pathlib import Path\nPath(__file__ + 'c').touch()\n", encoding="utf-8")
    config = write_config(tmp_path, _url(redis), CONSOLE, worker={**WORKER, "functions": ["deeds"]})
    jobs = {
        name: queue(redis).enqueue("deeds.touch", str(tmp_path / name), on_failure=Callback(name))
        for name in ("other.call", "deeds.call")
    }
    redis.delete("rq:queue:default")
    for job in jobs.values():
        job.set_status(JobStatus.STARTED)
        redis.zadd("rq:wip:default", {f"{job.id}:died": 1})
    with worker(config, python_path=tmp_path) as running:
        running.ready(redis)
        for job in jobs.values():
            eventually(lambda job=job: job.get_status() is JobStatus.FAILED, "its end")  # type: ignore[misc]
    assert (tmp_path / "deeds.call").exists()
    assert not (tmp_path / "other.call").exists()
    assert not (tmp_path / "other.pyc").exists()


def test_no_name_in_a_job_leads_to_an_import() -> None:
    """Where the module is not loaded yet, the function is not allowed, whatever it carries."""
    allowed = AllowedFunctions(["math"])
    sys.modules.pop("this", None)
    assert not allowed.allows("this.s")
    assert "this" not in sys.modules
    assert allowed.allows("math.gcd")
    for odd in (None, 7, "", ".", "gcd", "math.", "math..gcd", b"math.gcd", "math.pi", "math.__loader__"):
        assert not allowed.allows(odd)
