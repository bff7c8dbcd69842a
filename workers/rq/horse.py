"""RQ's work horse, the forked process that runs one job: how it waits for Redis, and how its function ended."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from typing import Any, Final, Self

from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as RedisRetry
from rq.job import Job, Retry

from notifier.notification.throttled import was_sent
from notifier.scripts.loader import Call, run
from notifier.scripts.records import RunFields
from notifier.store.connection import OUT_OF_MEMORY, is_passing, refusal
from workers.loop.parts import RqJob
from workers.rq.functions import Pickles

SENT: Final = 1
NOT_SENT: Final = 2
AWAY: Final = (RedisConnectionError, RedisTimeoutError, OSError)  # OSError: of the connecting, before redis-py 8
RETRIED: Final = (RedisError, OSError)
AWAY_S, FULL_S, AGAIN_S = 120.0, 10.0, 1.0


class Patience(RedisRetry):
    """How a horse retries a command of Redis. If the answer was lost, the command takes effect twice.

    RQ's commands may: at worst a worker's counter grows twice, or a failed job is retried twice. The wait comes before
    redis-py looks at the error: if a key is watched, RQ tries again without a pause while the command fails. The limit
    is a time, not a count: redis-py retries the connecting by itself, and without a connection nothing else.
    """

    def __init__(self) -> None:
        super().__init__(NoBackoff(), -1, RETRIED)

    def call_with_retry(self, do: Any, fail: Any, *args: Any, **options: Any) -> Any:
        """As redis-py's, with a wait after each error."""
        began = time.monotonic()

        def failed(error: Exception, *count: Any) -> None:
            if time.monotonic() - began >= _patience_s(error):
                raise error
            threading.Event().wait(AGAIN_S)
            fail(error, *count)

        return super().call_with_retry(do, failed, *args, **options)


def _patience_s(error: Exception) -> float:
    if refusal(error) == OUT_OF_MEMORY:
        return FULL_S  # the worker is to go on, as that is what empties Redis
    return AWAY_S if isinstance(error, AWAY) or is_passing(error) else 0.0


class Horse:
    """One run of a job. The horse notes how the function ended in a page of memory that it shares with the worker."""

    def __init__(self, rq_job: RqJob, noted: bytes | None, serializer: Any) -> None:
        """noted: the job's history before this run, its field `push_history`."""
        self.serializer = serializer
        self.run: RunFields | None = None
        if rq_job.user:
            of = rq_job.permit, rq_job.user, rq_job.category, rq_job.job_id
            self.run = RunFields("", *of, noted or b"")
        self._page = mmap.mmap(-1, 1)

    def watch(self, job: Job) -> None:
        """Have the horse note how the job's function ended."""
        perform = job.perform

        def watched() -> Any:
            if isinstance(self.serializer, Pickles):
                job.meta = job.get_meta()
            try:
                returned = perform()
            except BaseException:
                self._page[0] = SENT if was_sent() else NOT_SENT
                raise
            self._page[0] = NOT_SENT if isinstance(returned, Retry) and not was_sent() else SENT
            return returned

        job.perform = watched  # type: ignore[method-assign]
        self._began = time.monotonic()

    @property
    def sent(self) -> bool:
        """Whether the function returned, or said that it had sent."""
        return self._page[0] == SENT

    @property
    def may_have_sent(self) -> bool:
        """Whether a message may have left: a horse that was killed noted nothing."""
        return self._page[0] != NOT_SENT

    @property
    def took_us(self) -> int:
        """The time since the horse began."""
        return round((time.monotonic() - self._began) * 1e6)


class Relief:
    """Makes a call once a job has run for `after_s`, while it runs on."""

    def __init__(self, redis: Any, call: Call[Any], after_s: float) -> None:
        self.called = False
        self._redis, self._call = redis, call
        self._timer = threading.Timer(after_s, self._relieve)
        self._timer.daemon = True

    def _relieve(self) -> None:
        with contextlib.suppress(RedisError):  # the leases of the jobs behind it end by themselves then
            run(self._redis, self._call)
            self.called = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
