"""RQ's own jobs: those of other functions that arrive on our lanes, and notifications that arrived without meta."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog
from redis.exceptions import RedisError
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job
from rq.registry import ScheduledJobRegistry
from rq.serializers import JSONSerializer
from rq.worker import Worker

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.notification.job import FUNCTION, STEERING, decode_data, encode_reason, read_meta, read_notification
from notifier.notification.rq_call import RqCall, read_call
from notifier.queue import backlogs
from notifier.queue.calls import Plain, Settlement, State
from notifier.queue.in_flight import begin, encode_run, rq_run
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.scripts.keys import job_key, redis_key
from notifier.scripts.loader import Call, run
from notifier.scripts.records import RunFields
from notifier.texts import readable
from workers.loop.parts import RqJob, Tuning
from workers.rq import compat
from workers.rq.functions import AllowedFunctions
from workers.rq.horse import Horse, Relief
from workers.rq.throttle import steering_of
from workers.sending.sender import SUSPECT, PoisonError, check_crashes

MAX_SCHEDULED: Final = 500
READS: Final = ("data", "meta", "push_crashes", "push_returned", "push_history")
HELP: Final = (
    "name its module or function in worker.functions, or give push-throttle a Redis database of its own"
    " (redis.url ending in /1, say)"
)
RQ_SPARE_S: Final = 60  # how much longer than its interval RQ's heartbeat holds
RELEASE_MS: Final = 5_000  # how long one worker has to queue a job whose time has come


class CannotRunError(Exception):
    """The worker may not or cannot run a job. Arguments: why, the option for RQ's command to read it, and advice."""


class ForkedRqJobs:
    """Inspects jobs of other functions, and runs them as RQ's own worker does: in a forked work horse."""

    def __init__(
        self, worker: Worker, functions: AllowedFunctions, tuning: Tuning, redis: Any = None, *, runs: bool = True
    ) -> None:
        """redis: the partition's, if that is not RQ's; runs: whether jobs of other functions run here."""
        self._worker = worker
        self._functions = functions
        self._job_class = functions.guarded_job()
        self._warned = False
        self._redis = redis or worker.connection
        self._runs = runs
        self._prepared: dict[str, tuple[Job, Execution, Horse]] = {}
        self._horse: Horse | None = None  # the one that runs now
        self._tuning = tuning
        self.version = ""  # of the rates, for the history
        self._unclosed: list[Callable[[], Call[bool]]] = []  # each makes the call that closes an ended run's permit
        self._seen: dict[str, int] = {}
        self.upkeep = threading.Lock()  # the beat's thread holds it, so that nothing is forked meanwhile
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker.name)

    def read(self, job: Plain, knows: Callable[[str], bool]) -> str:
        """See `parts.RqJobs.read`. No job's content may raise here: `inspect` says what is wrong with it."""
        try:
            return self._steering(read_call(job.data), job, knows)
        except Exception:  # noqa: BLE001 - as said
            return ""

    def _steering(self, call: RqCall, job: Plain, knows: Callable[[str], bool] | None = None) -> str:
        """Return the meta that limits a job; '' if nothing limits it, or it may not run here."""
        if call.function == FUNCTION and (notification := read_notification(job.data)) is not None:
            return meta_of(notification, job.meta, knows)
        return steering_of(call, job.meta, self._functions, knows)

    def inspect(self, rq_job: RqJob) -> Settlement:
        """See `parts.RqJobs.inspect`. A job 'handed_to_rq' is in RQ's started registry before our lease ends."""
        if rq_job.job_id in self._prepared:  # Redis was away before this could be settled
            return rq_job.settlement("handed_to_rq")
        fields: Any = self._redis.hmget(job_key(rq_job.job_id), *READS)
        data, meta, crashes, returned, noted = fields
        try:
            self._check(rq_job, crashes)
            return rq_job.settlement(self._read(rq_job, Plain(rq_job.job_id.encode(), data or b"", meta), noted))
        except RedisError:
            raise
        except CannotRunError as error:
            return self._leave(rq_job, error, returned)
        except PoisonError as error:
            self._log.error("poison", job_id=readable(rq_job.job_id))
            reason = encode_reason(f"malformed: {error}")
            return rq_job.settlement("failed", "failed", reason)._replace(poison=True)
        except (InvalidNotificationError, NoSuchJobError) as error:
            return self._malformed(rq_job, str(error))
        except Exception as error:  # noqa: BLE001 - whatever RQ raises for a job that it cannot read
            return self._malformed(rq_job, f"RQ cannot read the job ({type(error).__name__})")

    def _read(self, rq_job: RqJob, plain: Plain, noted: bytes | None) -> State:
        """Prepare a job that RQ is to run, or give the scripts the meta that limits it. Return its next state."""
        try:
            call = read_call(plain.data, plain.meta or b"")
            if call.pickled and call.function == FUNCTION:
                decode_data(plain.data)
        except InvalidNotificationError as error:  # another worker may have the job's serializer
            raise CannotRunError(str(error), "") from None
        if not rq_job.user and (steering := self._steering(call, plain)):
            run(self._redis, backlogs.steer([(plain.job_id, steering)], rq_job.permit))
            return "backlog"
        option = "" if call.pickled else "-S json "
        if not self._runs:
            raise CannotRunError("this worker serves several partitions", option)
        try:
            job = self._job_class.fetch(rq_job.job_id, connection=self._redis, serializer=JSONSerializer)
        except (OSError, MemoryError) as error:
            why = f"this worker failed ({type(error).__name__})"
            raise CannotRunError(why, option, "see whether it has memory and open files left") from None
        if why_not := self._functions.why_not(job, call):
            raise CannotRunError(why_not, option)
        horse = Horse(rq_job, noted, job.serializer)
        self._prepared[job.id] = job, compat.prepare(self._worker, job), horse
        return "handed_to_rq"

    def _check(self, rq_job: RqJob, crashes: bytes | None) -> None:
        try:
            rq_job.job_id.encode()
        except UnicodeEncodeError:
            raise InvalidNotificationError("job", "its id is not UTF-8") from None
        died = int(crashes) if crashes and crashes.isdigit() else 0
        check_crashes(died)
        if died == SUSPECT:  # nothing else is under way: if this worker dies too, this job is to blame
            run(self._redis, begin(rq_job.job_id, rq_job.permit))

    def _leave(self, rq_job: RqJob, error: CannotRunError, returned: bytes | None) -> Settlement:
        """Return the job to its queue once, for a worker that can run it; the second time, set it aside."""
        why, serializer, advice = (*error.args, HELP)[:3]
        if not self._warned:
            self._warned = True
            self._log.warning("not_run", job_id=readable(rq_job.job_id), reason=readable(why), help=advice)
        if not returned:
            return rq_job.settlement("queue", detail="end")
        again = f"rq requeue {serializer}--queue {self._origin(rq_job)} {shlex.quote(rq_job.job_id)}"
        return rq_job.settlement("aside", "failed", encode_reason(f"set aside: {why}. {advice}. Then: {again}"))

    def _origin(self, rq_job: RqJob) -> str:
        origin: Any = self._redis.hget(job_key(rq_job.job_id), "origin")
        return shlex.quote((origin or b"").decode(errors="replace"))

    def _malformed(self, rq_job: RqJob, why: str) -> Settlement:
        self._log.warning("malformed", job_id=readable(rq_job.job_id), reason=readable(why))
        return rq_job.settlement("failed", "failed", encode_reason(f"malformed: {why}"))

    def drop(self, job_id: str) -> None:
        """Forget an inspected job that another worker has taken over."""
        job, execution, _ = self._prepared.pop(job_id)
        with self._redis.pipeline() as pipe:
            compat.forget_execution(self._worker, job, execution, pipe)
            pipe.execute()

    def run(self, job_id: str, behind: Call[Any], patience_s: float) -> bool:
        """See `parts.RqJobs.run`. RQ handles the end of the job; then its permit is closed."""
        job, execution, self._horse = self._prepared.pop(job_id)
        queue = self._worker.queue_class(job.origin, connection=self._redis, serializer=self._horse.serializer)
        self._horse.watch(job)
        try:
            self.hold()
            with self.upkeep, Relief(self._redis, behind, patience_s) as relief:
                compat.run_horse(self._worker, job, queue, execution)
        finally:
            horse, self._horse = self._horse, None
            if horse.run is not None:
                self._close(horse.run, horse, job)
        return relief.called

    def hold(self) -> None:
        """Date the permit of the running job ahead, as RQ does with its heartbeat. Never raises Redis's errors."""
        if self._horse is not None and self._horse.run is not None:
            ahead_s = self._worker.job_monitoring_interval + RQ_SPARE_S
            with contextlib.suppress(RedisError):
                run(self._redis, rq_run(self._horse.run._replace(ahead_us=ahead_s * 1_000_000)))

    def _close(self, ended: RunFields, horse: Horse, job: Job) -> None:
        with self.upkeep:  # the beat's thread closes permits, too
            self._unclosed.append(partial(self._closing, ended, horse, job, horse.took_us))
            self.close_ended()

    def _closing(self, ended: RunFields, horse: Horse, job: Job, took_us: int) -> Call[bool]:
        """Make the call that closes a permit. It reads the job's state now: Redis may have been away at the end."""
        is_end = compat.is_over(job)
        outcome = "delivered" if horse.sent else "failed" if is_end else "retried"
        closed = ended._replace(
            reached=int(horse.may_have_sent),
            outcome=outcome,
            keep=self._tuning.keep.encode(),
            is_end=int(is_end),
            handed=encode_run(outcome, took_us),
            worker=self._worker.name,
            version=self.version,
        )
        return rq_run(closed)

    def close_ended(self) -> None:
        """Close the permits of ended runs that are still open."""
        while self._unclosed:
            run(self._redis, self._unclosed[0]())
            del self._unclosed[0]

    def release_scheduled(self) -> None:
        """Queue the due jobs of RQ's `enqueue_in` and `enqueue_at` on our lanes, by Redis's clock.

        RQ's own scheduler would also queue the jobs that wait in our backlogs; this leaves them there.
        """
        now_s: Any = self._redis.time()
        for queue in self._worker.queues:
            registry = ScheduledJobRegistry(queue=queue)  # type: ignore[no-untyped-call]
            # Thousands of jobs of our backlogs may be overdue here: so each call goes on behind the one before.
            start = self._seen.get(queue.name, 0)
            due: Any = self._redis.zrangebyscore(registry.key, 0, int(now_s[0]), start=start, num=MAX_SCHEDULED)
            self._seen[queue.name] = start + len(due) if len(due) == MAX_SCHEDULED else 0
            for job_id in self._of_rq(due, registry, int(now_s[0])):
                self._queue(job_id, queue, registry, int(now_s[0]))

    def _of_rq(self, ids: Sequence[bytes], registry: ScheduledJobRegistry, until_s: int) -> list[bytes]:
        """Return those due by `until_s` that RQ alone has scheduled: they wait neither in a backlog nor in `later`."""
        with self._redis.pipeline() as pipe:
            for job_id in ids:
                pipe.zscore(registry.key, job_id)
                pipe.zscore(redis_key("later"), job_id)
                pipe.hget(job_key(job_id), "push_order")
            found = pipe.execute()
        of_each = zip(ids, found[::3], found[1::3], found[2::3], strict=True)
        return [
            each
            for each, at, later, order in of_each
            if at is not None and at <= until_s and later is None and order is None
        ]

    def _queue(self, job_id: bytes, queue: Any, registry: ScheduledJobRegistry, until_s: int) -> None:
        release = redis_key("release", "").encode() + job_id
        if not self._redis.set(release, self._worker.name, nx=True, px=RELEASE_MS):
            return  # another worker queues it
        if not self._of_rq([job_id], registry, until_s):  # another worker did, so it may be in a backlog by now
            self._redis.delete(release)
            return
        with self._redis.pipeline() as pipe:
            pipe.zrem(registry.key, job_id)
            try:
                job = self._job_class.fetch(job_id.decode(), connection=self._redis, serializer=JSONSerializer)
                compat.enqueue_due(queue, job, pipe)
            except RedisError:
                raise
            except Exception:  # noqa: BLE001 - its ttl has ended, so *pull* drops it; or `inspect` says what is wrong
                pipe.rpush(queue.key, job_id)
            pipe.delete(release)  # the job may be scheduled again at once
            pipe.execute()


def meta_of(notification: Notification, meta: bytes | None, knows: Callable[[str], bool] | None = None) -> str:
    """Return the meta that the scripts read, for a producer that left it out; its other fields stay.

    knows: whether a category is configured; an unknown one becomes `default`.
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
