"""RQ's own jobs, as a worker reads them before they run."""

import json
import pickle
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import SimpleWorker

from notifier.notification.job import decode_reason
from notifier.notification.rq_call import RqCall
from notifier.queue.calls import Room, Worker, pull
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from workers.loop.parts import RqJob, Tuning
from workers.rq.functions import AllowedFunctions
from workers.rq.jobs import ForkedRqJobs
from workers.rq.throttle import steering_of
from workers.sending.sender import SUSPECT


def rq_jobs(queue: Queue, *functions: str) -> ForkedRqJobs:
    tuning = Tuning(batch=1, in_flight=1, lease_us=1, timeout_us=1, grace_us=1)
    return ForkedRqJobs(SimpleWorker([queue], connection=queue.connection), AllowedFunctions(functions), tuning)


@pytest.mark.parametrize("trouble", [OSError(24, "Too many open files"), MemoryError()], ids=repr)
def test_a_worker_in_trouble_ends_no_job(redis: Redis, monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    """The job goes back to its queue, for a worker that is well; the second time it is set aside, with the reason."""
    queue = Queue("default", connection=redis, serializer=JSONSerializer)
    job = queue.enqueue("math.factorial", 5)
    jobs = rq_jobs(queue, "math.factorial")

    def fetch(*_: object, **__: object) -> Job:
        raise trouble

    monkeypatch.setattr(Job, "fetch", fetch)
    first = jobs.inspect(RqJob(job.id, "7"))
    redis.hset(job.key, "push_returned", "1")
    second = jobs.inspect(RqJob(job.id, "8"))

    assert (first.state, first.detail) == ("queue", "end")
    assert second.state == "aside"
    reason = decode_reason(second.detail.encode())
    assert f"this worker failed ({type(trouble).__name__})" in reason
    assert f"rq requeue -S json --queue default {job.id}" in reason


def test_a_suspect_is_begun_alone_and_poison_is_set_aside(redis: Redis) -> None:
    """Law 2: a job on which workers die while they read it is to blame for the next death, and then read no more."""
    queue = Queue("default", connection=redis, serializer=JSONSerializer)
    job, jobs = queue.enqueue("math.factorial", 5), rq_jobs(queue, "math.factorial")
    redis.hset(job.key, mapping={"push_permit": "7", "push_crashes": SUSPECT - 1})
    assert jobs.inspect(RqJob(job.id, "7")).state == "handed_to_rq"
    assert not redis.hexists(job.key, "push_begun")
    jobs.drop(job.id)
    redis.hset(job.key, "push_crashes", SUSPECT)
    assert jobs.inspect(RqJob(job.id, "7")).state == "handed_to_rq"
    assert redis.hget(job.key, "push_begun") == b"7"
    jobs.drop(job.id)
    redis.hset(job.key, "push_crashes", SUSPECT + 1)
    found = jobs.inspect(RqJob(job.id, "7"))
    assert (found.state, found.poison) == ("failed", True)


def test_what_no_worker_can_read_is_set_aside_though_it_names_no_queue(redis: Redis) -> None:
    """Anybody may write a hash that is no whole job; the worker that reads it goes on."""
    redis.hset("rq:job:odd", mapping={"data": b"\x80\x05rubbish", "push_returned": "1"})
    assert rq_jobs(Queue("default", connection=redis)).inspect(RqJob("odd", "7")).state == "aside"


def test_a_notification_in_a_pickle_is_told_of_its_serializer(redis: Redis) -> None:
    """To name its function in `worker.functions` would not help."""
    job = Queue("default", connection=redis).enqueue("notifier.deliver", kwargs={"user": "42"})
    redis.hset(job.key, "push_returned", "1")
    found = rq_jobs(Queue("default", connection=redis)).inspect(RqJob(job.id, "7"))
    reason = decode_reason(str(found.detail).encode())
    assert (found.state, "JSON" in reason, "does not name" in reason) == ("aside", True, False), reason


def test_a_meta_that_rq_2_wrote_as_a_pickle_limits_its_job() -> None:
    """Law 1: `rq requeue` without `-S json`, or RQ's clean-up after a kill, writes the bytes that it could not read."""
    meta = {"user": "42", "category": "chat", "mine": 1}
    pickled = pickle.dumps({"unserialized": json.dumps(meta).encode()})
    told = steering_of(RqCall("math.factorial", [5], {}), pickled, AllowedFunctions(["math.factorial"]))
    assert json.loads(told) == meta


@pytest.mark.parametrize("since", [{"push_order": 1, "status": "scheduled"}, {"status": "scheduled"}, {}], ids=str)
def test_what_another_worker_queues_meanwhile_is_not_queued_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, since: dict[Any, Any]
) -> None:
    """Law 2: a worker that looked before, and comes to it after, finds it in its user's backlog, to be tried again
    after its interval, or gone: it goes once.
    """
    queue = Queue("default", connection=redis, serializer=JSONSerializer)
    job = queue.enqueue_in(timedelta(0), "math.factorial", 5)
    one, other = rq_jobs(queue), rq_jobs(queue)
    come_late = other._queue

    def after_the_first(*args: Any) -> None:
        one.release_scheduled()
        assert redis.lpop(queue.key) == job.id.encode()  # *pull*
        if since:
            redis.hset(job.key, mapping=since)
            redis.zadd("rq:scheduled:default", {job.id: 2**40})
        come_late(*args)

    monkeypatch.setattr(other, "_queue", after_the_first)
    other.release_scheduled()
    assert queue.get_job_ids() == []
    assert redis.zscore("rq:scheduled:default", job.id) == (2**40 if since else None)
    assert not redis.exists(f"notifier:release:{job.id}"), "its next retry would wait"


def test_a_scheduled_job_whose_ttl_ended_before_its_time_is_forgotten(redis: Redis) -> None:
    """As by RQ's own scheduler: it is not counted as scheduled any more."""
    queue = Queue("default", connection=redis, serializer=JSONSerializer)
    job = queue.enqueue_in(timedelta(0), "math.factorial", 5, ttl=10)
    redis.delete(job.key)  # as Redis does after its ttl
    rq_jobs(queue).release_scheduled()
    assert redis.zscore("rq:scheduled:default", job.id) is None
    run(redis, pull(Worker(lanes=["default"]), Room(10), RuleTable(Policies())))
    assert queue.get_job_ids() == []


def test_a_job_that_another_worker_took_over_leaves_no_run_behind(redis: Redis) -> None:
    """RQ would take the run for abandoned, and fail the job or run it once more; and `health` would wait for it."""
    queue = Queue("default", connection=redis, serializer=JSONSerializer)
    job, jobs = queue.enqueue("math.factorial", 5), rq_jobs(queue, "math.factorial")
    jobs._worker.register_birth()  # type: ignore[no-untyped-call]
    before = set(redis.keys())
    assert jobs.inspect(RqJob(job.id, "7")).state == "handed_to_rq"
    assert set(redis.keys()) > before
    jobs.drop(job.id)
    assert set(redis.keys()) == before
    assert not redis.hexists(jobs._worker.key, "current_job")


@pytest.mark.parametrize("meta", [{"at": defaultdict(list)}, {"at": {(1, (2,)): 1}}], ids=str)
def test_a_pickled_meta_that_may_not_be_opened_runs_nothing(redis: Redis, meta: dict[str, Any]) -> None:
    """Its job is set aside, as with such an argument: its function's retries and on_failure are not spent on it."""
    queue = Queue("default", connection=redis)
    job = queue.enqueue("math.factorial", 5, meta=meta)
    found = rq_jobs(queue, "math.factorial").inspect(RqJob(job.id, "7"))
    assert (found.state, found.detail) == ("queue", "end")


def test_a_meta_that_only_a_horse_opens_stays_whole_where_a_worker_saves_its_job(redis: Redis) -> None:
    """As RQ's clean-up does after a kill: the function still finds all that its caller put there."""
    job = Queue("default", connection=redis).enqueue("math.factorial", 5, meta={"user": "42", "of": timedelta(1)})
    stands = redis.hget(job.key, "meta")
    AllowedFunctions([]).guarded_job().fetch(job.id, connection=redis, serializer=JSONSerializer).save()
    assert redis.hget(job.key, "meta") == stands


@pytest.mark.parametrize("meta", [{"user": "42", "n": 1}, {"unserialized": b'{"user": "42", "n": 1}'}], ids=str)
def test_a_job_that_saves_a_meta_that_a_tool_pickled_keeps_its_user(redis: Redis, meta: dict[str, Any]) -> None:
    """Law 1: what it is limited by stands there still when it is tried again."""
    job = Queue("default", connection=redis, serializer=JSONSerializer).enqueue("math.factorial", 5)
    redis.hset(job.key, "meta", pickle.dumps(meta))
    guarded = AllowedFunctions([]).guarded_job().fetch(job.id, connection=redis, serializer=JSONSerializer)
    guarded.meta["more"] = 2
    guarded.save_meta()
    told = steering_of(
        RqCall("math.factorial", [5], {}), redis.hget(job.key, "meta"), AllowedFunctions(["math.factorial"])
    )
    assert json.loads(told)["user"] == "42"
