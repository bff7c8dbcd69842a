"""The beat: once a second a worker takes up changed secrets and rates, and reports its state in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any, Final, Self

import structlog
from redis.exceptions import RedisError
from rq.utils import utcformat
from rq.worker import Worker, WorkerStatus

from notifier.errors import RedisUnusableError
from notifier.queue.circuits import LIMITS
from notifier.queue.health import IN_FLIGHT, LOOKED, RELEASE, SUSPENDED
from notifier.queue.writes import write
from notifier.scripts.keys import redis_key, under
from notifier.scripts.loader import run
from workers.configuration.reload import Reload
from workers.configuration.secrets import ProviderSecrets
from workers.rq import compat
from workers.rq.jobs import ForkedRqJobs
from workers.sending.sender import Sender
from workers.served import TURNS, Served

BEAT_S: Final = 1.0
HEARTBEAT_S: Final = 30.0


class Beat:
    """Runs a worker's tasks of each second, beside its engines, within `async with`.

    tended: set after the first beat, even if Redis did not answer.
    """

    def __init__(
        self,
        worker: Worker,
        served: Sequence[Served],
        sender: Sender,
        rq_jobs: ForkedRqJobs,
        *,
        reload: Reload | None,
        secrets: ProviderSecrets | None,
    ) -> None:
        """worker: RQ knows it at the first partition of `served`. reload, secrets: None if the worker follows none."""
        self.tended = asyncio.Event()
        self._worker, self._served, self._sender, self._rq_jobs = worker, served, sender, rq_jobs
        self._reload, self._secrets = reload, secrets
        self._release = version("push-throttle")
        self._rates_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False
        self._next_heartbeat = 0.0
        self._told: Mapping[Any, str] = {}
        self._counted = (0, 0)
        self._tended, self._tended_at = 0, math.inf
        self._repairs: dict[int, threading.Thread] = {}  # by partition
        self._log = structlog.get_logger("notifier.worker", worker=worker.name)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with self._rq_jobs.upkeep:  # a thread may still wait for it, and must not report a worker that has left
            self._has_ended = True
        for each in self._served:
            if each.refused is not None:
                raise each.refused

    async def follow_rates(self) -> None:
        """Take up changed rates, one caller at a time: at each beat, and when an engine's pull finds new ones."""
        if self._reload is None:
            return
        async with self._rates_lock:
            if (policies := await self._reload.changed()) is not None:
                for each in self._served:
                    await each.take_up(policies, self._reload.version)

    def report(self) -> None:
        """Write the worker's state for RQ, and add the jobs that ended since the last report."""
        worker, flights = self._worker, [each.engine.flights for each in self._served]
        state = WorkerStatus.BUSY if any(each.busy for each in flights) else WorkerStatus.IDLE
        if self._served[0].engine.suspended_us:
            state = WorkerStatus.SUSPENDED
        delivered, failed = sum(each.delivered for each in flights), sum(each.failed for each in flights)
        if state != worker.get_state():
            worker.set_state(state)
        if self._counted != (delivered, failed):
            with worker.connection.pipeline() as pipe:
                pipe.hincrby(worker.key, "successful_job_count", delivered - self._counted[0])
                pipe.hincrby(worker.key, "failed_job_count", failed - self._counted[1])
                pipe.execute()
            self._counted = delivered, failed

    async def _go_on(self) -> None:
        task, worker, redis = asyncio.current_task(), self._worker, self._served[0].parts.redis
        # redis-py sends under asyncio.wait_for, which may lose a cancellation before Python 3.12: hence `cancelling`.
        while task is not None and not task.cancelling():
            try:
                if self._secrets is not None and await self._secrets.follow(self._sender, self._served):
                    for each in self._served:
                        each.parts.idle.wake.set()  # this worker has the new keys; the idle leader may not yet
                # A full Redis allows EXPIRE but no write of this beat; without it RQ would forget a working worker.
                with contextlib.suppress(RedisError):  # if the first partition is away, another one has the rates
                    await redis.expire(worker.key, worker.worker_ttl + 60)
                await self.follow_rates()
                fields = {**self._describe(), LIMITS: self._served[0].parts.turns.capacity.describe()}
                await asyncio.to_thread(self._tend, fields)
            except (RedisError, RedisUnusableError) as error:
                self._log.debug("beat_missed", reason=str(error))
            except Exception as error:  # noqa: BLE001 - RQ's upkeep reads any job, and none must end the beat
                self._log.warning("beat_missed", reason=type(error).__name__)
            self.tended.set()
            await self._tend_partitions()
            if any(each.refused for each in self._served):
                for each in self._served:
                    each.engine.stop()
            await asyncio.sleep(BEAT_S)

    def _describe(self) -> dict[Any, str]:
        """Return the fields that describe this worker, for its hash in each partition."""
        own = {RELEASE: self._release, IN_FLIGHT: str(sum(len(each.engine.flights) for each in self._served))}
        return own if self._reload is None else own | self._reload.told()

    async def _tend_partitions(self) -> None:
        """Tend the only partition, or of several those whose turn came since the last beat. A beat may take long."""
        worker, count = self._worker, len(self._served)
        if count == 1:
            await self._served[0].tend(None, 0)
            return
        assert worker.birth_date is not None
        own = {"hostname": str(worker.hostname), "pid": str(worker.pid), "version": str(worker.version)}
        fields = {**own, "birth": utcformat(worker.birth_date), **self._describe()}
        now = time.monotonic()
        since, self._tended_at = min(TURNS, max(BEAT_S, now - self._tended_at)), now
        turns = [self._served[n % count] for n in range(self._tended, self._tended + math.ceil(count * since / TURNS))]
        self._tended += len(turns)
        behind = (each for each in self._served if each.is_behind)
        for each in (*turns, *behind):  # each in a task of its own, as one may be away
            if each.tending is None or each.tending.done():
                registers = None if each is self._served[0] else fields
                each.tending = asyncio.create_task(each.tend(registers, worker.worker_ttl + 60))

    def _tend(self, fields: dict[Any, str]) -> None:
        """Describe this worker to RQ, and do RQ's upkeep. These calls block, so they run in a thread of their own."""
        worker, first = self._worker, self._served[0]
        with self._rq_jobs.upkeep:
            if self._has_ended:
                return
            self._tell(fields | {SUSPENDED: str(first.engine.suspended_us)})
            for each in self._served:
                self._repair(each)
            if (looked_us := first.engine.looked_us) is not None:
                if None in worker.connection.hmget(worker.key, "birth", LOOKED):  # Redis has lost the entry, or a part
                    self._register_anew(looked_us)
                run(worker.connection, write("HSET", worker.key, LOOKED, looked_us))
                run(worker.connection, write("SET", redis_key("looked"), looked_us))
            self.report()
            if time.monotonic() >= self._next_heartbeat:
                worker.heartbeat()
                self._next_heartbeat = time.monotonic() + HEARTBEAT_S
            self._rq_jobs.close_ended()
            self._rq_jobs.release_scheduled()
            compat.free_slots(worker.connection)
            if worker.should_run_maintenance_tasks:
                worker.run_maintenance_tasks()  # type: ignore[no-untyped-call]

    def _tell(self, fields: Mapping[Any, str]) -> None:
        if fields != self._told:
            run(self._worker.connection, write("HSET", self._worker.key, *chain.from_iterable(fields.items())))
            self._told = fields

    def _register_anew(self, looked_us: int) -> None:
        """Register with a Redis that came back empty."""
        worker = self._worker
        worker.connection.delete(worker.key)  # first: if it fails later, the next beat tries again
        self._served[0].claim()
        worker.register_birth()  # type: ignore[no-untyped-call]
        worker.set_state(worker.get_state())
        worker.connection.hset(worker.key, mapping={**self._told, LOOKED: looked_us})

    def _repair(self, served: Served) -> None:
        """Repair, in a thread, what a script left half done when it met an unreadable key or a missing permission."""
        running = self._repairs.get(served.at.number)
        if (running is None or not running.is_alive()) and served.engine.mender.is_over():
            from notifier.operations.audit.audit import repair_beside  # noqa: PLC0415 - hardly ever

            with under(served.at.prefixes):
                self._repairs[served.at.number] = repair_beside(served.at.client, served.parts.tuning.lease_us)
            self._log.warning("repairing", reason="a script failed in the middle; see notifier audit")
