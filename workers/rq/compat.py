"""All that differs between RQ 2.12 and RQ 3."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError
from rq import defaults, registry
from rq.exceptions import InvalidJobOperation
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.registry import BaseRegistry, FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.version import VERSION
from rq.worker import Worker

from notifier.errors import RedisUnusableError
from notifier.scripts.keys import RQ_VARIABLE, in_force, redis_key

IS_3: Final = int(VERSION.partition(".")[0]) >= 3  # noqa: PLR2004 - a version

ENDED: Final = frozenset({JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED, JobStatus.CANCELED})
# A field of a worker's hash, for `notifier health`: RQ 2 writes it once the work horse has begun, RQ 3 never.
RUNS: Final = "current_job"
MAX_LIMITS: Final = 20  # RateLimits checked in one turn
TURN_MS: Final = 900  # the length of one worker's turn


def check_prefix() -> None:
    """Raise RedisUnusableError if RQ has another prefix for its keys: jobs would wait where no worker looks."""
    wanted, prefix = in_force().rqs, getattr(defaults, RQ_VARIABLE, "rq")
    if prefix != wanted:
        cure = "set" if IS_3 else "install RQ 3 and set"
        raise RedisUnusableError(
            f"RQ {VERSION} names its keys {prefix}:…, and those of this fleet are named {wanted}:…: {cure} "
            f"{RQ_VARIABLE}='{wanted}' for this process"
        )


def cleaned_registries() -> list[type[BaseRegistry]]:
    """The registries of a queue that RQ's maintenance looks after."""
    found: list[type[BaseRegistry]] = [FinishedJobRegistry, StartedJobRegistry, FailedJobRegistry]
    if IS_3:
        found.append(registry.ReadyJobRegistry)  # jobs that the end of another job should have queued, but did not
    return found


def prepare(worker: Worker, job: Job) -> Execution:
    """Note that a worker is about to run a job, so that RQ's commands can stop it before its work horse has begun."""
    execution = worker.prepare_execution(job)
    with contextlib.suppress(RedisError):  # the job runs without this note, too
        worker.connection.hset(worker.key, RUNS, job.id)
    return execution


def run_horse(worker: Worker, job: Job, queue: Any, execution: Execution) -> None:
    """Run a job in a work horse, and wait for its end."""
    worker.fork_work_horse(job, queue)
    worker.monitor_work_horse(job, queue, *_since_3(execution))
    _forget_that_it_runs(worker)


def is_over(job: Job) -> bool:
    """Whether RQ does not run this job again. RQ retries or fails a job whose end it could not note."""
    try:
        status = job.get_status()
    except (InvalidJobOperation, ValueError, ResponseError):  # it is deleted, or written over
        return True
    return status in ENDED or (status == JobStatus.STARTED and not job.retries_left)


def forget_execution(worker: Worker, job: Job, execution: Execution, pipe: Any) -> None:
    """Remove RQ's record of an execution that does not take place."""
    worker.cleanup_execution(job, pipe, *_since_3(execution))
    _forget_that_it_runs(worker)


def _since_3(execution: Execution) -> tuple[Execution, ...]:
    return (execution,) if IS_3 else ()


def _forget_that_it_runs(worker: Worker) -> None:
    if IS_3:
        with contextlib.suppress(RedisError):
            worker.connection.hdel(worker.key, RUNS)


def enqueue_due(queue: Any, job: Job, pipe: Any) -> None:
    """Queue a job whose time has come, as RQ's scheduler does; a job with a RateLimit waits for its slot."""
    if IS_3 and job.has_rate_limit:
        queue._enqueue_rate_limited_job(job, pipeline=pipe, at_front=job.should_enqueue_at_front())  # noqa: SLF001 - what RQ's scheduler calls
    else:
        queue._enqueue_job(job, pipeline=pipe, at_front=job.should_enqueue_at_front())  # noqa: SLF001 - as above


def free_slots(redis: Any) -> None:
    """Give the slots of RateLimits to the next jobs, if the jobs that had them left by another way than RQ's.

    A notification leaves its slot when a worker moves it into its user's backlog: from there on the rates decide.
    """
    if not IS_3:
        return
    from rq.rate_limit import RateLimitRegistry  # noqa: PLC0415 - RQ 2 has none

    keys = redis.srandmember(RateLimitRegistry.rl_keys_key, MAX_LIMITS)
    if keys and redis.set(redis_key("slots"), "1", nx=True, px=TURN_MS):
        for key in keys:
            RateLimitRegistry(key.decode(), redis).cleanup()
