"""RQ's own jobs: those of other functions that arrive on our lanes, and notifications that arrived without meta."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import structlog
from redis.exceptions import RedisError
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job
from rq.registry import ScheduledJobRegistry
from rq.serializers import JSONSerializer
from rq.worker import Worker

from notifier.dispatch import calls
from notifier.dispatch.calls import Plain, Settlement
from notifier.dispatch.in_flight import begin
from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.job import FUNCTION, STEERING, decode_data, encode_reason, read_meta
from notifier.rules.policy import DEFAULT_CATEGORY
from notifier.scripts.keys import job_key, redis_key
from notifier.scripts.loader import run
from notifier.units import readable
from workers import rq_compat
from workers.in_flight import RqJob
from workers.sender import SUSPECT, PoisonError, check_crashes

MAX_SCHEDULED: Final = 500
RELEASE_MS: Final = 5_000  # how long one worker has to queue a job whose time has come


class ForkedRqJobs:
    """Decides what a job of another function is, and runs it as RQ's own worker would: in a forked work horse."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._redis = worker.connection
        self._prepared: dict[str, tuple[Job, Execution]] = {}
        self._seen: dict[str, int] = {}
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker.name)

    def read(self, job: Plain, knows: Callable[[str], bool]) -> str:
        """See `engine.RqJobs.read`. Nothing that a job holds may raise here: `inspect` says what is wrong with it."""
        try:
            function, kwargs = decode_data(job.data)
            return meta_of(Notification.from_kwargs(kwargs), job.meta, knows) if function == FUNCTION else ""
        except Exception:  # noqa: BLE001 - as said
            return ""

    def inspect(self, rq_job: RqJob) -> Settlement:
        """See `engine.RqJobs.inspect`. For 'held' the job stands in RQ's started registry before our lease ends."""
        if rq_job.job_id in self._prepared:  # Redis was away before this could be settled
            return rq_job.settlement("handed_to_rq")
        fields: Any = self._redis.hmget(_key(rq_job.job_id), "data", "meta", "push_crashes")
        data, meta, crashes = fields
        try:
            self._check(rq_job, crashes)
            function, kwargs = decode_data(data or b"")
            if function == FUNCTION:
                told = meta_of(Notification.from_kwargs(kwargs), meta)
                run(self._redis, calls.steer([(rq_job.job_id.encode(), told)], rq_job.permit))
                return rq_job.settlement("backlog")
            job = Job.fetch(rq_job.job_id, connection=self._redis, serializer=JSONSerializer)
        except RedisError:
            raise
        except PoisonError as error:
            return self._poison(rq_job, error)
        except (InvalidNotificationError, NoSuchJobError) as error:
            return self._malformed(rq_job, str(error))
        except Exception as error:  # noqa: BLE001 - whatever RQ raises for a job that it cannot read
            return self._malformed(rq_job, f"RQ cannot read the job ({type(error).__name__})")
        self._prepared[job.id] = job, self._worker.prepare_execution(job)
        return rq_job.settlement("handed_to_rq")

    def _check(self, rq_job: RqJob, crashes: bytes | None) -> None:
        try:
            rq_job.job_id.encode()
        except UnicodeEncodeError:
            raise InvalidNotificationError("job", "its id is not UTF-8") from None
        died = int(crashes) if crashes and crashes.isdigit() else 0
        check_crashes(died)
        if died == SUSPECT:  # if this worker dies too, this one is to blame: nothing else is under way
            run(self._redis, begin(rq_job.job_id, rq_job.permit))

    def _poison(self, rq_job: RqJob, error: PoisonError) -> Settlement:
        self._log.error("poison", job_id=readable(rq_job.job_id))
        return rq_job.settlement("failed", "failed", encode_reason(f"malformed: {error}"))._replace(poison=True)

    def _malformed(self, rq_job: RqJob, why: str) -> Settlement:
        self._log.warning("malformed", job_id=readable(rq_job.job_id), reason=readable(why))
        return rq_job.settlement("failed", "failed", encode_reason(f"malformed: {why}"))

    def drop(self, job_id: str) -> None:
        """Forget an inspected job that another worker has taken over."""
        job, execution = self._prepared.pop(job_id)
        with self._redis.pipeline() as pipe:
            rq_compat.forget_execution(self._worker, job, execution, pipe)
            pipe.execute()

    def run(self, job_id: str) -> None:
        """Run an inspected job to its end; what becomes of it is RQ's affair."""
        job, execution = self._prepared.pop(job_id)
        queue = self._worker.queue_class(job.origin, connection=self._redis, serializer=JSONSerializer)
        rq_compat.run_horse(self._worker, job, queue, execution)

    def release_scheduled(self) -> None:
        """Queue RQ's own jobs of `enqueue_in` and `enqueue_at` on our lanes whose time has come, by Redis's clock.


        RQ's own scheduler would queue again whatever waits in our backlogs; here the two are told apart.
        """
        now_s: Any = self._redis.time()
        for queue in self._worker.queues:
            registry = ScheduledJobRegistry(queue=queue)  # type: ignore[no-untyped-call]
            # What waits in our backlogs can be late in thousands: each look goes on behind the one before.
            start = self._seen.get(queue.name, 0)
            due: Any = self._redis.zrangebyscore(registry.key, 0, int(now_s[0]), start=start, num=MAX_SCHEDULED)
            self._seen[queue.name] = start + len(due) if len(due) == MAX_SCHEDULED else 0
            if not due:
                continue
            with self._redis.pipeline(transaction=False) as pipe:
                for job_id in due:
                    # In this order: what leaves `later` has its place in a backlog by then.
                    pipe.zscore(redis_key("later"), job_id)
                    pipe.hmget(job_key(job_id), "status", "push_order")
                found = pipe.execute()
            for job_id, later, (status, order) in zip(due, found[::2], found[1::2], strict=True):
                if later is None and status is not None and order is None:
                    self._queue(job_id, queue, registry)

    def _queue(self, job_id: bytes, queue: Any, registry: ScheduledJobRegistry) -> None:
        if not self._redis.set(redis_key("release", "").encode() + job_id, self._worker.name, nx=True, px=RELEASE_MS):
            return  # another worker is about it
        if self._redis.zscore(registry.key, job_id) is None:
            return
        with self._redis.pipeline() as pipe:
            pipe.zrem(registry.key, job_id)
            try:
                job = Job.fetch(job_id.decode(), connection=self._redis, serializer=JSONSerializer)
                rq_compat.enqueue_due(queue, job, pipe)
            except RedisError:
                raise
            except Exception:  # noqa: BLE001 - RQ cannot read it: `inspect` says so, and ends it
                pipe.rpush(queue.key, job_id)
            pipe.execute()


def meta_of(notification: Notification, meta: bytes | None, knows: Callable[[str], bool] | None = None) -> str:
    """The meta that the scripts read, for a producer that left it out; what else it holds is kept.

    knows: whether a category is configured; one that is not is `default`.
    """
    kept = read_meta(meta or b"{}")
    for name in ("expires_in", "zone"):
        if name in kept:
            replace(notification, **{name: kept[name]}).validate()
    steering = {name: getattr(notification, name) for name in STEERING}
    merged = {**kept, **{name: value for name, value in steering.items() if value is not None}}
    if knows is not None and not knows(merged["category"]):
        merged["category"] = DEFAULT_CATEGORY
    return json.dumps(merged)


def _key(job_id: str) -> bytes:
    return job_key(job_id)
