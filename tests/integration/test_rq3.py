"""What RQ 3 brought and RQ 2 has not: RateLimit, its ready registry."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import WORKER, Simulators, client_of, eventually, plain, queue, worker, write_config
from workers import PushWorker

rate_limit = pytest.importorskip("rq.rate_limit", reason="RQ 2 has none of this")
registry = pytest.importorskip("rq.registry")

# It notes when it begins and when it ends.
ERRANDS = """
import time

def note(path, text):
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"+{text}\\n")
    time.sleep(0.05)
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"-{text}\\n")
"""


@dataclass(frozen=True, slots=True)
class World:
    """Two workers at work, and a folder on their Python path."""

    redis: Redis
    simulators: Simulators
    folder: Path
    lane: Queue

    def slots(self, key: str) -> tuple[int, int]:
        of = rate_limit.RateLimitRegistry(key, self.redis)
        return of.get_allowed_job_count(), of.get_rate_limited_job_count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "errands.py").write_text(ERRANDS, encoding="utf-8")
    with Simulators(folder / "simulators") as simulators:
        config = write_config(
            folder, redis_server.url, simulators.providers(), worker={**WORKER, "functions": ["errands"]}
        )
        with client_of(config) as redis:
            redis.flushdb()
            with worker(config, python_path=folder) as one, worker(config, python_path=folder, name="two") as two:
                one.ready(redis)
                two.ready(redis)
                yield World(redis, simulators, folder, queue(redis))


def test_jobs_of_a_rate_limit_run_one_at_a_time(world: World) -> None:
    """RQ's limit of one at a time holds over two workers, for jobs that are due later too, and all of them run."""
    path, limit = world.folder / "one-at-a-time", rate_limit.RateLimit("printer", 1)
    jobs = [world.lane.enqueue("errands.note", str(path), str(n), rate_limit=limit) for n in range(4)]
    later = Job.create("errands.note", [str(path), "later"], connection=world.redis, serializer=JSONSerializer)
    later.rate_limit_key, later.rate_limit_concurrency = limit.key, limit.concurrency
    later.origin = "default"
    world.lane.schedule_job(later, later.created_at)
    eventually(lambda: all(job.get_status().value == "finished" for job in [*jobs, later]), "all to have run")
    lines = path.read_text(encoding="utf-8").split()
    assert [line[0] for line in lines] == ["+", "-"] * 5
    assert all(begin[1:] == end[1:] for begin, end in zip(lines[::2], lines[1::2], strict=True))
    eventually(lambda: world.slots("printer") == (0, 0), "the slots to be free")


def test_notifications_with_a_rate_limit_are_sent(world: World) -> None:
    """A plain producer's notifications that carry a RateLimit go by the rates: each is sent, and its slot is free."""
    limit, users = rate_limit.RateLimit("campaign", 2), [f"limited-{n}" for n in range(5)]
    for user in users:
        world.lane.enqueue("notifier.deliver", kwargs=plain(user, user), rate_limit=limit)
    eventually(lambda: sorted(world.simulators.titles("limited-")) == users, "five deliveries")
    eventually(lambda: world.slots("campaign") == (0, 0), "the slots to be free")


def test_what_waits_in_the_ready_registry_is_queued(world: World) -> None:
    """A worker that died between a job's end and the queueing of its dependents does not leave these behind."""
    redis, lane = world.redis, queue(world.redis, "bulk-mail")  # one that none of the workers serves
    job = Job.create("time.sleep", [0], connection=redis, serializer=JSONSerializer, origin=lane.name)
    job.save()
    ready = registry.ReadyJobRegistry(queue=lane)
    with redis.pipeline() as pipe:
        ready.register_jobs([job], pipe)
        pipe.execute()
    PushWorker([lane.name], connection=redis).clean_registries()
    assert lane.get_job_ids() == [job.id]
    assert ready.get_job_ids() == []
