"""RQ's work horse, the forked process that runs one job: how its function ended, and where pickles are opened."""

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
from notifier.store.connection import is_passing
from workers.loop.parts import RqJob
from workers.rq.functions import Pickles

SENT: Final = 1
NOT_SENT: Final = 2
AWAY: Final = (RedisConnectionError, RedisTimeoutError)
AWAY_S, FULL_S, AGAIN_S = 120.0, 10.0, 1.0


class Patience(RedisRetry):
    """How a horse asks Redis again. RQ's commands may be sent twice: they add to a worker's counters.

    And to its queue a job that has failed and is tried again at once: it is tried twice where that answer was lost.
    It waits before redis-py looks at the error: where a key is watched RQ goes round at once, for as long as it fails.
    For so long, and not so often: to connect is asked again by itself, and alone where no connection is left.
    """

    def __init__(self) -> None:
        super().__init__(NoBackoff(), -1, (RedisError,))

    def call_with_retry(self, do: Any, fail: Any, *args: Any, **options: Any) -> Any:
        """As redis-py's, a second after an error."""
        began = time.monotonic()

        def failed(error: Exception, *count: Any) -> None:
            lasts_s = AWAY_S if isinstance(error, AWAY) else FULL_S if is_passing(error) else 0.0
            if time.monotonic() - began > lasts_s:
                raise error
            threading.Event().wait(AGAIN_S)
            fail(error, *count)

        return super().call_with_retry(do, failed, *args, **options)


class Horse:
    """One run of a job. Its function's end is noted in a page of memory that the horse shares with its worker."""

    def __init__(self, rq_job: RqJob, noted: bytes | None, serializer: Any) -> None:
        """noted: what its hash told of the time before, `push_history`."""
        self.serializer = serializer
        self.run: RunFields | None = None
        if rq_job.user:
            of = rq_job.permit, rq_job.user, rq_job.category, rq_job.job_id
            self.run = RunFields("", *of, noted or b"")
        self._page = mmap.mmap(-1, 1)
        self._began = time.monotonic()

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
        """Whether a message may have left: a horse that was killed said nothing."""
        return self._page[0] != NOT_SENT

    @property
    def took_us(self) -> int:
        """Since the horse began."""
        return round((time.monotonic() - self._began) * 1e6)


class Relief:
    """Makes a call beside a job that runs, once it has run for so long."""

    def __init__(self, redis: Any, call: Call[Any], after_s: float) -> None:
        self.called = False
        self._redis, self._call = redis, call
        self._timer = threading.Timer(max(0.0, after_s), self._relieve)
        self._timer.daemon = True

    def _relieve(self) -> None:
        with contextlib.suppress(RedisError):  # then their leases end
            run(self._redis, self._call)
            self.called = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
