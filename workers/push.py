"""PushWorker: the engine as an RQ worker class. It registers, beats, suspends and shuts down like any other."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import structlog
from redis.exceptions import RedisError
from rq.serializers import JSONSerializer
from rq.utils import now as rq_now
from rq.worker import Worker, WorkerStatus
from rq.worker_registration import clean_worker_registry

from notifier.dispatch.calls import SWEPT_AT_ONCE, sweep
from notifier.dispatch.circuits import LIMITS
from notifier.dispatch.health import LOOKED, read_others
from notifier.dispatch.spans import Spans
from notifier.errors import NotifierError
from notifier.log import configure_logging
from notifier.providers.apns.token_store import RedisTokenStore
from notifier.providers.contract import Provider
from notifier.scripts.loader import Call, run_async
from notifier.settings import Settings, settings_path
from notifier.store.connection import check_when_there, is_away, unusable
from workers import rq_compat
from workers.capacity import Capacity
from workers.circuits import Circuits
from workers.engine import Engine
from workers.idle import LISTEN_S, IdleWorker
from workers.in_flight import Tuning
from workers.late_feedback import LateFeedback
from workers.reload import Reload
from workers.rq_jobs import ForkedRqJobs
from workers.secrets import ProviderSecrets
from workers.sender import Sender
from workers.start import Wait, collect_garbage_seldom, load_at_start
from workers.tracing import Tracing
from workers.wiring import (
    asyncio_client,
    build_capacity,
    build_providers,
    build_sender,
    build_tuning,
    circuit_names,
    dry_runs,
)

BEAT_S: Final = 1.0
HEARTBEAT_S: Final = 30.0
SWEEPS: Final = 10  # in a row, where one finds as much as it may end; each blocks Redis for about a millisecond
OTHERS: Final = "they fail each notification that they take; give push-throttle a Redis database of its own"
REPEATED_S: Final = 1.0  # a signal that comes again within this time is the same one: a pool passes on Ctrl-C


async def _sweep(redis: Any, swept: Call[int]) -> None:
    for _ in range(SWEEPS):
        if await run_async(redis, swept) < SWEPT_AT_ONCE:
            return


def wait_for_redis(connection: Any) -> None:
    """Wait until Redis is there, and say for what; raise RedisUnusableError where it is, and cannot be used."""
    wait = Wait(structlog.get_logger("notifier.worker"))
    check_when_there(connection, wait.goes_on)
    wait.is_over()


class PushWorker(Worker):
    """Sends the notifications of its queues, its lanes, the most urgent first; JSON jobs only.

    It does not fork for a notification: connections to the providers stay open and many sends are in flight.
    A job of another function on its lanes runs as RQ runs it, in a work horse, between batches.
    """

    def __init__(
        self,
        queues: Any,
        *args: Any,
        settings: Settings | None = None,
        config: Path | None = None,
        providers: Mapping[str, Provider] | None = None,
        **kwargs: Any,
    ) -> None:
        """As RQ's worker. settings and providers: else those of the configuration, read when work begins.

        config: the file whose changed rates are taken up while it works; else that of the configuration. With
        `settings` alone, none is.
        """
        kwargs["serializer"] = JSONSerializer
        super().__init__(queues, *args, **kwargs)
        self.queues = [
            self.queue_class(q.name, connection=self.connection, serializer=JSONSerializer) for q in self.queues
        ]
        self._ordered_queues = self.queues[:]
        self._settings = settings
        self._config = config
        self._providers = providers
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._secrets: ProviderSecrets | None = None
        self._counted = (0, 0)
        self._told: Any = None
        self._grace_s = 0.0
        self._stopping_since: float | None = None
        self._structlog = structlog.get_logger("notifier.worker").bind(worker=self.name)

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        *args: Any,
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        **kwargs: Any,
    ) -> bool:
        """Work until told to stop; see RQ's `Worker.work`. Exits as `notifier` does where it cannot begin."""
        del kwargs  # a scheduler is not needed, and lanes have an order of their own
        try:
            rq_compat.check_prefix()
            if self._settings is None:
                self._config = settings_path(self._config)
            settings = self._settings or load_at_start(self._config)
            self._grace_s = settings.worker.grace_us / 1e6
            if not structlog.is_configured():  # under `rq worker`
                configure_logging(settings.log.format, settings.log.level)
            wait_for_redis(self.connection)
            redis = asyncio_client(self.connection)
            built = self._build(settings, redis) if self._providers is None else self._providers
            self._tracing = Tracing(redis, Spans()) if settings.tracing == "opentelemetry" else None
        except NotifierError as error:
            print(error, file=sys.stderr)  # noqa: T201 - one clear line for people, whatever logs look like
            raise SystemExit(error.exit_status) from None
        self._install_signal_handlers()  # before it is known to RQ: from then on it takes leave in order
        try:
            self._register(logging_level, *args)
        except ValueError as error:  # RQ's answer to a name that a living worker has
            print(error, file=sys.stderr)  # noqa: T201 - as above
            raise SystemExit(1) from None
        except RedisError as error:  # one that cannot take a worker's entry is full, or may not be written to
            refused = unusable(error)
            print(refused, file=sys.stderr)  # noqa: T201 - as above
            raise SystemExit(refused.exit_status) from None
        self._warn_of_others()
        collect_garbage_seldom()
        try:
            asyncio.run(
                self._work(settings, redis, dict(built), burst=burst, max_jobs=max_jobs, max_idle_s=max_idle_time)
            )
        finally:
            with contextlib.suppress(RedisError):
                self.teardown()  # type: ignore[no-untyped-call]
        assert self._engine is not None
        return bool(self._engine.delivered + self._engine.failed)

    def _register(self, *args: Any) -> None:
        """Become known to RQ. A Redis that has gone since it was looked for is waited for, as it is later."""
        wait = Wait(self._structlog)
        while not self._stop_requested:
            try:
                if wait.begun:
                    self._forget_own_entry()
                self.bootstrap(*args)
            except RedisError as error:
                if not is_away(error):
                    raise
                wait.goes_on(error)
                wait.sleep()
            else:
                wait.is_over()
                break

    def _warn_of_others(self) -> None:
        with contextlib.suppress(RedisError):  # no more than a warning
            if names := read_others(self.connection, self.queue_names()):
                self._structlog.warning("other_workers", names=names, help=OTHERS)

    def _forget_own_entry(self) -> None:
        """Remove what an attempt has left whose answer was lost: RQ would take it for another worker of this name."""
        entry: Any = self.connection.hmget(self.key, "hostname", "pid")
        if entry == [str(self.hostname).encode(), str(self.pid).encode()]:
            self.connection.delete(self.key)

    def _build(self, settings: Settings, redis: Any) -> dict[str, Provider]:
        """The configured providers; from now on the files that they are built from are followed."""
        late = LateFeedback(redis, settings.keep_feedback_us)
        build = partial(build_providers, settings, tokens=RedisTokenStore(redis), report=late.report)
        self._secrets = ProviderSecrets(settings, lambda platform: build(platform=platform))
        return build()

    async def _work(
        self,
        settings: Settings,
        redis: Any,
        providers: dict[str, Provider],
        *,
        burst: bool,
        max_jobs: int | None,
        max_idle_s: float | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        lanes = self.queue_names()
        for by in dry_runs(settings):
            self._structlog.warning("dry_run", route=by, help="FCM checks these messages and delivers none")
        idle = IdleWorker(asyncio_client(self.connection, block_s=LISTEN_S), redis, self.name, lanes)
        rq_jobs = ForkedRqJobs(self)
        circuits = Circuits(redis, self.name, circuit_names(settings, providers))
        capacity = build_capacity(settings, providers)
        sender = build_sender(settings, providers, circuits, capacity)
        reload = Reload(self._config, redis, lanes, settings) if self._config is not None else None
        if reload is not None:
            settings = await self._begin(reload, settings)
        self._engine = Engine(
            redis=redis,
            idle=idle,
            worker=self.name,
            lanes=lanes,
            policies=settings.policies(),
            sender=sender,
            circuits=circuits,
            capacity=capacity,
            rq_jobs=rq_jobs,
            tuning=build_tuning(settings),
            version=reload.version if reload is not None else "",
            tracing=self._tracing,
        )
        if self._stop_requested:
            self._engine.stop()
        tuning = build_tuning(settings)
        beat = asyncio.create_task(self._beat(self._engine, sender, rq_jobs, reload, capacity, circuits, redis, tuning))
        try:
            await self._engine.run(burst=burst, max_jobs=max_jobs, max_idle_s=max_idle_s)
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
            await sender.close()
            with contextlib.suppress(RedisError):
                self._report(self._engine)
            await idle.close()
            await redis.aclose()

    async def _begin(self, reload: Reload, settings: Settings) -> Settings:
        """The rates in force; a Redis that has gone since the worker was registered is waited for, as it is later."""
        wait = Wait(self._structlog)
        while not self._stop_requested:
            try:
                settings = await reload.begin()
            except RedisError as error:
                wait.goes_on(error)
                await asyncio.sleep(wait.again_s)
            else:
                wait.is_over()
                break
        return settings

    async def _beat(  # noqa: PLR0917 - all that it tends
        self,
        engine: Engine,
        sender: Sender,
        rq_jobs: ForkedRqJobs,
        reload: Reload | None,
        capacity: Capacity,
        circuits: Circuits,
        redis: Any,
        tuning: Tuning,
    ) -> None:
        """Once a second: changed secrets and rates, and what the rest of RQ wants to know of a worker."""
        next_heartbeat = 0.0
        swept = sweep(
            self.queue_names(),
            keep_failed_us=tuning.keep_failed_us,
            keep_delivered_us=tuning.keep_delivered_us,
            ends=tuning.ends,
        )
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        # Asked, because redis-py sends under asyncio.wait_for, which before Python 3.12 may lose a cancellation.
        while task is not None and not task.cancelling():
            try:
                if self._secrets is not None:
                    await self._secrets.follow(sender, circuits)
                # A full Redis allows this and nothing of the rest; without it RQ would forget a worker that works.
                self.connection.expire(self.key, self.worker_ttl + 60)
                if reload is not None:
                    if (policies := await reload.changed()) is not None:
                        engine.use(policies, reload.version)
                    await reload.retime()
                self._tell({**({} if reload is None else reload.told()), LIMITS: capacity.describe()})
                if engine.looked_us is not None:
                    self.connection.hset(self.key, LOOKED, engine.looked_us)
                self._report(engine)
                if loop.time() >= next_heartbeat:
                    self.heartbeat()
                    next_heartbeat = loop.time() + HEARTBEAT_S
                await _sweep(redis, swept)
                rq_jobs.release_scheduled()
                rq_compat.free_slots(self.connection)
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()  # type: ignore[no-untyped-call]
            except RedisError as error:
                self._structlog.debug("beat_missed", reason=str(error))
            except Exception as error:  # noqa: BLE001 - RQ's upkeep reads everybody's jobs; one must not end the beat
                self._structlog.warning("beat_missed", reason=type(error).__name__)
            await asyncio.sleep(BEAT_S)

    def clean_registries(self) -> None:
        """As RQ's, by Redis's clock: one that is hours ahead would empty the registries of what has failed just now."""
        self.last_cleaned_at: Any = rq_now()  # RQ tries again in ten minutes, also where it cannot read a job
        now_s: Any = self.connection.time()
        for queue in self.queues:
            if not queue.acquire_maintenance_lock():
                continue
            try:
                for registry in rq_compat.cleaned_registries():
                    registry(queue=queue).cleanup(timestamp=int(now_s[0]))
                clean_worker_registry(queue)
                queue.intermediate_queue.cleanup(self, queue)
            finally:
                queue.release_maintenance_lock()  # type: ignore[no-untyped-call]

    def unsubscribe(self) -> None:
        """As RQ's, but tell the listening thread to end before it is woken: else it sleeps on for a second."""
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()
        super().unsubscribe()  # type: ignore[no-untyped-call]

    def _tell(self, told: dict[Any, str]) -> None:
        if told != self._told:
            self.connection.hset(self.key, mapping=told)
            self._told = told

    def _report(self, engine: Engine) -> None:
        state = WorkerStatus.BUSY if engine.busy else WorkerStatus.IDLE
        if engine.suspended:
            state = WorkerStatus.SUSPENDED
        delivered, failed = engine.delivered - self._counted[0], engine.failed - self._counted[1]
        if state != self.get_state():
            self.set_state(state)
        if delivered or failed:
            with self.connection.pipeline() as pipe:
                pipe.hincrby(self.key, "successful_job_count", delivered)
                pipe.hincrby(self.key, "failed_job_count", failed)
                pipe.execute()
            self._counted = (engine.delivered, engine.failed)

    def _set_connection(self, connection: Any) -> Any:
        """Leave the connection's timeout as it is configured: unlike RQ's, no call here blocks for minutes."""
        return connection

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGQUIT, self.request_stop)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a signal handler
        """Warm shutdown: take nothing more, finish what is in flight within the grace time; a second signal: at once.

        SIGQUIT: at once, though it be the first. A job of another function that outlasts it is ended, as RQ's second
        signal does.
        """
        now = time.monotonic()
        again = self._stopping_since is not None and now - self._stopping_since > REPEATED_S
        if self._stopping_since is None:
            self._stopping_since = now
            timer = threading.Timer(self._grace_s, self._end_horse)
            timer.daemon = True
            timer.start()
        self._stop_requested = True
        if again or signum == signal.SIGQUIT:
            self._end_horse()
            self._tell_engine("stop_now")
        self._tell_engine("stop")
        # Not from here: a line that the signal interrupts would be left half written, and this call would raise.
        self._in_loop(partial(self._structlog.info, "stopping", signal=signal.Signals(signum).name))

    def _tell_engine(self, what: Literal["stop", "stop_now"]) -> None:
        if self._engine is not None:
            self._in_loop(getattr(self._engine, what))

    def _in_loop(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(callback)

    def _end_horse(self) -> None:
        if self.horse_pid:
            self.kill_horse()

    def _start_scheduler(self, *_: Any, **__: Any) -> None:
        """Not needed: wake-ups are kept by the workers, and `ForkedRqJobs.release_scheduled` does RQ's part."""
