"""Where a producer's notifications go: one Redis here, several in `notifier.shards.backend`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from notifier.dispatch import calls
from notifier.dispatch.circuits import Held, read_routes
from notifier.errors import NotReplicatedError
from notifier.limiter import RedisLimiter, UserLimiter
from notifier.operations.forecast import MOST, Expected, Forecast
from notifier.producer.admission import accepted, all_accepted
from notifier.producer.feedback import Gone, read_feedback
from notifier.producer.memory_limit import Ceiling
from notifier.scripts.loader import Call, run
from notifier.scripts.ownership import fenced
from notifier.settings import Settings
from notifier.store.connection import ask, unusable

# RQ's timeout of a job. PushWorker has deadlines of its own; a stock tool that reads the job wants a number.
JOB_TIMEOUT_S: Final = 180
CHUNK: Final = 100  # notifications in one call: about a millisecond of Redis's time

T = TypeVar("T")
State = Literal[
    "queued", "waiting", "sending", "delivered", "rejected", "expired", "cancelled", "superseded", "dropped", "failed"
]
OF_RQ: Final[Mapping[str, State]] = {"queued": "queued", "started": "sending", "canceled": "cancelled"}
UNDELIVERED: Final[Mapping[bytes | None, State]] = {b"rejected": "rejected", b"expired": "expired"}


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of a notification.

    expected_at: when it should go, for one that waits. reason: why it was not delivered.
    settled_at: when it was delivered. attempts: how many were spent so far. shard: where, if there are several.
    superseded_by: the job that took its place. not_before: what else than the user's rules decides when a waiting one
    goes, so that it goes at `expected_at` at the soonest; None where nothing does.
    """

    job_id: str
    state: State
    expected_at: datetime | None = None
    settled_at: datetime | None = None
    reason: str | None = None
    attempts: int = 0
    shard: str | None = None
    superseded_by: str | None = None
    not_before: str | None = None


class Backend(Protocol):
    """What `Notifier` needs of where notifications are kept. Each call raises RedisUnusableError where Redis fails."""

    limiter: UserLimiter
    chunk: int  # how many notifications are handed over in one call

    def enqueue(self, jobs: Sequence[calls.Job]) -> list[str]:
        """Accept these; returns their job ids. Raises OverloadedError, NotReplicatedError."""
        ...

    def sending(self) -> AbstractContextManager[Callable[[Sequence[calls.Job]], list[str]]]:
        """By what `send_many` accepts each chunk, for one call of it."""
        ...

    def cancel(self, job_id: str) -> calls.Cancelled:
        """See `Notifier.cancel`."""
        ...

    def status(self, job_id: str) -> Status | None:
        """See `Notifier.status`."""
        ...

    def routes(self) -> list[Held]:
        """See `Notifier.routes`."""
        ...

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Gone]:
        """See `Notifier.feedback`."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class SingleRedis:
    """A `Backend` that is one Redis."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._settings = settings
        self._ceiling = Ceiling(settings.redis.max_memory) if settings.redis.max_memory else None
        self._max_waiting_in_all = settings.most_waiting().in_all
        self.limiter: UserLimiter = RedisLimiter(redis)
        self.chunk = CHUNK

    def close(self) -> None:
        """See `Backend.close`."""
        self._redis.close()

    def cancel(self, job_id: str) -> calls.Cancelled:
        """See `Backend.cancel`."""
        kept = self._settings
        return self._run(
            calls.cancel(job_id, keep_failed_us=kept.keep_failed_us, keep_delivered_us=kept.keep_delivered_us)
        )

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Iterator[Gone]:
        """See `Backend.feedback`."""
        return read_feedback(self._redis, group, consumer, lease, follow=follow)

    def routes(self) -> list[Held]:
        """See `Backend.routes`."""
        return ask(lambda: read_routes(self._redis))

    def status(self, job_id: str) -> Status | None:
        """See `Backend.status`."""
        try:
            return self._status(job_id)
        except RedisError as error:
            raise unusable(error) from error

    def _status(self, job_id: str) -> Status | None:
        fields = ("status", "push_outcome", "push_attempts", "push_by", "push_reason", "push_permit", "meta")
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(f"rq:job:{job_id}", fields)
            pipe.zscore("notifier:delivered", job_id)
            (status, outcome, attempts, by, why, permit, meta), delivered_us = pipe.execute()
        if status is None:
            return None if delivered_us is None else Status(job_id, "delivered", settled_at=_moment(delivered_us / 1e6))
        spent = int(attempts or 0)
        word = status.decode()
        if word == "scheduled":
            expected = self._expected(job_id, meta)
            why_later = expected.not_before or None
            return Status(job_id, "waiting", expected_at=expected.at, attempts=spent, not_before=why_later)
        if word == "failed":
            return Status(job_id, UNDELIVERED.get(outcome, "failed"), reason=self._reason(job_id), attempts=spent)
        if by is not None and outcome == b"superseded":
            return Status(job_id, "superseded", superseded_by=by.decode(), attempts=spent)
        if why is not None and outcome == b"dropped":
            return Status(job_id, "dropped", reason=why.decode(), attempts=spent)
        # None: RQ has more states, but only for jobs of other functions.
        state = OF_RQ.get(word)
        if state == "cancelled" and permit is not None:  # RQ's own cancel came while a worker had it
            state = "sending"
        return None if state is None else Status(job_id, state, attempts=spent)

    def _expected(self, job_id: str, meta: bytes | None) -> Expected:
        later: Any = self._redis.zscore("notifier:later", job_id)
        if later is not None:
            attempts = self._redis.hmget(f"rq:job:{job_id}", ["push_attempts", "push_refusals"])
            return Expected(_moment(later / 1e6), "it is tried again" if any(attempts) else "its own time, send_at")
        try:
            user = json.loads(meta or b"{}")["user"]
        except (ValueError, KeyError, TypeError):  # of a plain producer
            return Expected(None)
        forecast = Forecast(self._redis, self._settings.policies(), user)
        return forecast.of(job_id) or Expected(None, f"more than {MOST:,} wait before it")

    def _reason(self, job_id: str) -> str | None:
        from rq.job import Job  # noqa: PLC0415 - RQ takes a quarter of a second to import; producers rarely ask
        from rq.serializers import JSONSerializer  # noqa: PLC0415

        result = Job(job_id, connection=self._redis, serializer=JSONSerializer).latest_result()
        return result.exc_string if result is not None else None

    def sending(self) -> AbstractContextManager[Callable[[Sequence[calls.Job]], list[str]]]:
        """See `Backend.sending`."""
        return nullcontext(self.enqueue)

    def enqueue(self, jobs: Sequence[calls.Job], fence: Mapping[str, bool] | None = None) -> list[str]:
        """See `Backend.enqueue`. fence: for each user whether it is on the way elsewhere; raises MovedError."""
        if (ceiling := self._ceiling) is not None:
            ask(lambda: ceiling.check(self._redis, jobs))
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        call = calls.enqueue(
            jobs,
            dedupe_for_us=self._settings.dedupe_for_us,
            timeout_s=JOB_TIMEOUT_S,
            stamp=stamp,
            max_waiting=self._max_waiting_in_all,
            keep_failed_us=self._settings.keep_failed_us,
        )
        if fence is not None:
            call = fenced(call, fence)
        if not self._settings.redis.wait_replicas:
            return all_accepted(self._run(call))
        try:
            # WAIT counts what its own connection wrote.
            with self._redis.client() as connection:  # type: ignore[no-untyped-call]
                answers = self._run(call, connection)
                self._wait_for_replicas(connection, accepted(answers))
        except RedisError as error:
            raise unusable(error) from error
        return all_accepted(answers)

    def _wait_for_replicas(self, connection: Redis, job_ids: list[str]) -> None:
        settings = self._settings.redis
        try:
            # Half of what the connection bears, so that the answer comes before its patience ends.
            have = connection.wait(settings.wait_replicas, settings.socket_timeout_us // 2000)
        except RedisError as error:
            raise NotReplicatedError(job_ids, f"Redis did not answer WAIT: {error}") from error
        if have < settings.wait_replicas:
            raise NotReplicatedError(job_ids, f"{have} of {settings.wait_replicas} replicas have it so far")

    def _run(self, call: Call[T], connection: Redis | None = None) -> T:
        # Safe to repeat: every call here names its jobs, and the script does for them once what it is asked twice.
        return ask(lambda: run(self._redis if connection is None else connection, call))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
