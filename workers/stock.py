"""RQ's stock path: jobs of other functions that arrive on our lanes, and notifications that arrived without meta."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import structlog
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.registry import ScheduledJobRegistry
from rq.serializers import JSONSerializer

from notifier.errors import InvalidNotificationError
from notifier.job import FUNCTION, STEERING, decode_data, encode_reason
from notifier.limiter.lines import Settlement
from notifier.notification import Notification
from workers.sender import check_crashes

if TYPE_CHECKING:
    from workers.engine import Foreign
    from workers.push import PushWorker

MOST_SCHEDULED: Final = 100


class StockPath:
    """Decides what a foreign job is, and runs it as RQ's own worker would: in a forked work horse."""

    def __init__(self, worker: PushWorker) -> None:
        self._worker = worker
        self._redis = worker.connection
        self._prepared: dict[str, Job] = {}
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker.name)

    def inspect(self, foreign: Foreign) -> Settlement:
        """See `engine.Stock.inspect`. For 'held' the job stands in RQ's started registry before our lease ends."""
        fields: Any = self._redis.hmget(f"rq:job:{foreign.job_id}", "data", "meta", "push_crashes")
        data, meta, crashes = fields
        try:
            check_crashes(int(crashes or 0))
            function, kwargs = decode_data(data or b"")
            if function == FUNCTION:
                self._adopt(foreign.job_id, Notification.from_kwargs(kwargs), meta)
                return foreign.settlement("line")
            job = Job.fetch(foreign.job_id, connection=self._redis, serializer=JSONSerializer)
        except (InvalidNotificationError, NoSuchJobError) as error:
            self._log.error("malformed", job_id=foreign.job_id, reason=str(error))
            return foreign.settlement("failed", "failed", encode_reason(f"malformed: {error}"))
        self._worker.prepare_execution(job)
        self._prepared[job.id] = job
        return foreign.settlement("held")

    def run(self, job_id: str) -> None:
        """Run an inspected job to its end; what becomes of it is RQ's affair."""
        job = self._prepared.pop(job_id)
        queue = self._worker.queue_class(job.origin, connection=self._redis, serializer=JSONSerializer)
        self._worker.fork_work_horse(job, queue)
        self._worker.monitor_work_horse(job, queue)

    def release_scheduled(self) -> None:
        """Queue the foreign jobs that `enqueue_in` or `enqueue_at` left on our lanes and whose time has come.

        RQ's own scheduler would queue again whatever waits in our lines; here the two are told apart.
        """
        for queue in self._worker.queues:
            registry = ScheduledJobRegistry(queue=queue)  # type: ignore[no-untyped-call]
            due = registry.get_jobs_to_schedule(chunk_size=MOST_SCHEDULED)
            if not due:
                continue
            with self._redis.pipeline(transaction=False) as pipe:
                for job_id in due:
                    pipe.hmget(f"rq:job:{job_id}", "status", "push_order", "push_deadline", "meta")
                found = pipe.execute()
            for job_id, (status, order, deadline, meta) in zip(due, found, strict=True):
                if status is not None and order is None and deadline is None and not _names_user(meta):
                    self._queue(job_id, queue, registry)

    def _queue(self, job_id: str, queue: Any, registry: ScheduledJobRegistry) -> None:
        # Whoever removes the entry queues the job, so of several workers one does.
        if registry.remove(job_id):
            job = Job.fetch(job_id, connection=self._redis, serializer=JSONSerializer)
            queue._enqueue_job(job)  # noqa: SLF001 - what RQ's scheduler calls

    def _adopt(self, job_id: str, notification: Notification, meta: bytes | None) -> None:
        """Write the meta that the scripts read, for a producer that left it out; what else it holds is kept."""
        try:
            found = json.loads(meta or b"{}")
        except ValueError:
            found = {}
        steering = {name: getattr(notification, name) for name in STEERING}
        kept = found if isinstance(found, dict) else {}
        merged = {**kept, **{name: value for name, value in steering.items() if value is not None}}
        self._redis.hset(f"rq:job:{job_id}", "meta", json.dumps(merged))


def _names_user(meta: bytes | None) -> bool:
    try:
        return "user" in json.loads(meta or b"{}")
    except (ValueError, TypeError):
        return False
