"""PushWorker: the engine as an RQ worker class. It registers, beats, suspends and shuts down like any other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, TypeVar

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty
from rq.utils import now as rq_now
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

from notifier.errors import NotifierError, SettingsError
from notifier.log import configure_logging
from notifier.providers.apns.token_store import RedisTokenStore
from notifier.providers.contract import Provider
from notifier.queue.health import LOOKED, find_workers, read_others
from notifier.queue.spans import Spans
from notifier.scripts.keys import redis_key, under
from notifier.settings import Settings, settings_path
from notifier.settings.loading import unread
from notifier.store.connection import check_same, time_us
from notifier.store.exchange import exchange
from notifier.store.partitions import Partition, Partitions
from workers.beat import Beat
from workers.configuration import wiring
from workers.configuration.reload import Reload
from workers.configuration.secrets import ProviderSecrets
from workers.configuration.start import collect_garbage_seldom, load_at_start, pause, wait_for_redis, when_there
from workers.lookups import Loop
from workers.loop.idle import IdleWorker, listen_s
from workers.loop.parts import Parts
from workers.loop.turns import Turns
from workers.loop.watchdog import Watchdog
from workers.rq import compat
from workers.rq.functions import AllowedFunctions
from workers.rq.horse import RETRIED, Patience
from workers.rq.jobs import ForkedRqJobs
from workers.sending.circuits import Circuits
from workers.sending.late_feedback import LateFeedback
from workers.sending.sender import Sender
from workers.sending.tracing import Tracing
from workers.served import Served, run_all

T = TypeVar("T")

MONITORING_S: Final = 30  # at most, between checks of a work horse: they feed the watchdog, which waits for a minute
OTHERS: Final = "they fail each notification that they take; give push-throttle a Redis database of its own"
HEARS_AGAIN_S: Final = 2.0  # between two attempts of the listening thread to reach Redis
REPEATED_S: Final = 1.0  # a signal that comes again within this time is the same: a pool passes Ctrl-C on, too


def _ended_by(error: NotifierError) -> SystemExit:
    """Print one line for people, whatever the format of the log, and return the exception that ends the process."""
    print(error, file=sys.stderr)  # noqa: T201 - see above
    return SystemExit(error.exit_status)


class PushWorker(Worker):
    """An RQ worker that sends the notifications of its queues (the lanes), the most urgent lane first.

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
        partitions: Sequence[Partition] | None = None,
        **kwargs: Any,
    ) -> None:
        """As RQ's worker. settings, providers: if None, those of the configuration, read when work begins.

        config: the file whose changed rates the worker follows; if None, that of the configuration, or none if
        `settings` is given. partitions: those that the worker serves; None is the fleet at its connection. The
        connection is that to the first of these: there RQ knows the worker.
        """
        kwargs["serializer"] = JSONSerializer
        super().__init__(queues, *args, **kwargs)
        self.log_job_description = False  # it has the function's arguments, which may be a text or a token
        self.job_monitoring_interval = min(self.job_monitoring_interval, MONITORING_S)
        self.queues = [
            self.queue_class(q.name, connection=self.connection, serializer=JSONSerializer) for q in self.queues
        ]
        self._settings = settings
        self._config = config
        self._providers = providers
        self._partitions = partitions or Partitions.around(self.connection)
        self._served: list[Served] = []
        self._functions = AllowedFunctions([])  # those of the configuration, once it works
        self._rq_jobs: ForkedRqJobs | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._secrets: ProviderSecrets | None = None
        self._reload: Reload | None = None
        self._grace_s = 0.0
        self._stopping_since: float | None = None
        self._hears_no_more = threading.Event()
        # Bound when it is used: under `rq worker` the log is configured later.
        self._structlog = structlog.get_logger("notifier.worker", worker=self.name)
        self._watchdog = Watchdog(self._structlog, os.environ)

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        *args: Any,
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        **kwargs: Any,
    ) -> bool:
        """Work until told to stop; see RQ's `Worker.work`. Exits as `notifier` does if it cannot begin."""
        del kwargs  # `release_scheduled` does the part of RQ's scheduler, and lanes have an order of their own
        try:
            compat.check_prefix()
            if self._settings is None:
                self._config = settings_path(self._config)
            settings = self._settings or load_at_start(self._config)
            self._grace_s = settings.worker.grace_us / 1e6
            if settings.redis.partitions > 1 and self._partitions[0].prefixes is None:
                raise SettingsError("this fleet has redis.partitions: start its workers by `notifier worker`")
            if not structlog.is_configured():  # under `rq worker`
                configure_logging(settings.log.format, settings.log.level)
            for line in unread(os.environ, settings.providers.platforms()):
                self._structlog.warning("unknown_variable", reason=line)
            if self.connection.connection_pool.max_connections == 1:
                raise SettingsError("the URL of Redis has max_connections=1: a worker needs 2 or more")
            wait_for_redis(self.connection)
            if self._settings is None:
                check_same(self.connection, settings.redis)
            redises = wiring.asyncio_clients(self._partitions)
            served = [replace(at, client=redis) for at, redis in zip(self._partitions, redises, strict=True)]
            self._functions = AllowedFunctions(settings.worker.functions)
            built = self._build(settings, served) if self._providers is None else self._providers
            self._install_signal_handlers()  # before RQ knows the worker: from then on a signal must unregister it
        except NotifierError as error:
            raise _ended_by(error) from None
        try:
            if not self._register(logging_level, *args):
                return False
            self._warn_of_others()
            collect_garbage_seldom()
            bounds = {"burst": burst, "max_jobs": max_jobs, "max_idle_s": max_idle_time}
            with asyncio.Runner(loop_factory=Loop) as runner:
                settings = self._begin(runner, settings, served)
                runner.run(self._watchdog.watch(self._work(settings, served, dict(built), **bounds)))
        except NotifierError as error:
            raise _ended_by(error) from None
        finally:
            with contextlib.suppress(RedisError):
                self.teardown()  # type: ignore[no-untyped-call]
        return any(each.engine.flights.ended for each in self._served)

    def _register(self, *args: Any) -> bool:
        """Register with RQ, and wait for Redis if it is away; False if the worker should stop before."""
        tried = False

        def register() -> bool:
            nonlocal tried
            self._partitions[0].claim()
            if tried and self._owns_entry():  # from an attempt whose answer was lost
                self.connection.delete(self.key)
            tried = True
            try:
                self.bootstrap(*args)
            except ValueError as error:  # RQ's answer to a name that has an entry
                if not self._outlives_namesake():
                    raise NotifierError(str(error)) from None
                return not self._stop_requested and register()
            self.connection.hset(self.key, LOOKED, time_us(self.connection))  # it is about to look for work
            return True

        return bool(self._when_there(register))

    def _when_there(self, do: Callable[[], T]) -> T | None:
        """See `when_there`; None if the worker should stop before."""
        return when_there(do, lambda: self._stop_requested, self._structlog)

    def _outlives_namesake(self) -> bool:
        """Remove the entry of a dead worker of this name; False if the other worker lives.

        A killed worker may start again before its death shows, so this waits until the entry proves one or the other.
        """
        age_us = 0
        while not self._stop_requested:
            found = {each.name: each for each in exchange(self.connection, find_workers())}
            alive = found.get(self.name)
            if alive is None:
                return not self.connection.exists(self.key)
            if not alive.is_healthy():
                self.connection.delete(self.key)
                break
            if alive.age_us < age_us:  # it has looked for work meanwhile
                return False
            if not age_us:
                self._structlog.warning("name_taken", waits="until that worker looks for work, or is found dead")
            age_us = alive.age_us
            pause()
        return True

    def _warn_of_others(self) -> None:
        with contextlib.suppress(RedisError):  # it is only a warning
            if names := read_others(self.connection, self.queue_names()):
                self._structlog.warning("other_workers", names=names, help=OTHERS)

    def _owns_entry(self) -> bool:
        """Whether the entry of this name is this worker's own, and not that of another one."""
        entry: Any = self.connection.hmget(self.key, "hostname", "pid")
        return bool(entry == [str(self.hostname).encode(), str(self.pid).encode()])

    def _is_away(self) -> bool:
        """Whether the Redis of the first partition is away, see `Engine.is_away`."""
        return bool(self._served) and self._served[0].engine.is_away

    def register_death(self) -> None:
        """As RQ's, unless another worker has this name: this one may have waited for it, or hung and lost it."""
        if not self._is_away() and self._owns_entry():
            super().register_death()  # type: ignore[no-untyped-call]

    def _build(self, settings: Settings, served: Sequence[Partition]) -> dict[str, Provider]:
        """Build the configured providers, and follow the files that they are built from."""
        late = LateFeedback(served[0].client, settings.keep_feedback_us)
        build = partial(wiring.build_providers, settings, tokens=RedisTokenStore(served), report=late.report)
        self._secrets = ProviderSecrets(settings, lambda platform: build(platform=platform))
        return build()

    def _begin(self, runner: asyncio.Runner, settings: Settings, served: Sequence[Partition]) -> Settings:
        """Return the settings with the rates in force, and follow these."""
        if self._config is None:
            return settings
        self._reload = reload = Reload(self._config, served, settings)
        return self._when_there(lambda: runner.run(reload.begin())) or settings

    async def _work(
        self, settings: Settings, served: Sequence[Partition], providers: dict[str, Provider], **bounds: Any
    ) -> None:
        self._loop, reload = asyncio.get_running_loop(), self._reload
        for by in wiring.dry_runs(settings):
            self._structlog.warning("dry_run", route=by, help="FCM checks these messages and delivers none")
        sender = self._serve(settings, served, providers, "" if reload is None else reload.version)
        assert self._rq_jobs is not None
        beat = Beat(self, self._served, sender, self._rq_jobs, reload=reload, secrets=self._secrets)
        for each in self._served:
            if reload is not None:
                each.engine.look_at_rates, each.engine.rates = beat.follow_rates, reload.published
            if self._stop_requested:
                each.engine.stop()
        await asyncio.gather(*(each.tend(None, 0) for each in self._served))  # first: waiting jobs follow these rates
        try:
            async with beat:
                if bounds["burst"]:
                    await beat.tended.wait()  # by then the due jobs that RQ has scheduled are queued
                await run_all(self._served, **bounds)
        finally:
            sender.engines = 0  # an engine that failed has not closed it
            await sender.close()
            if not self._is_away():
                with contextlib.suppress(RedisError):
                    beat.report()
                    if (looked_us := self._served[0].engine.looked_us) is not None:  # a burst may end before a beat
                        self.connection.set(redis_key("looked"), looked_us)
            await asyncio.gather(*(each.leave(registered=n > 0) for n, each in enumerate(self._served)))

    def _serve(
        self,
        settings: Settings,
        served: Sequence[Partition],
        providers: Mapping[str, Provider],
        version: str,
    ) -> Sender:
        """Make an engine for each partition; they share the sender and its knowledge of the routes.

        served: the partitions, with asyncio clients.
        """
        lanes, tuning, policies = self.queue_names(), wiring.build_tuning(settings), settings.policies()
        capacity = wiring.build_capacity(settings, providers)
        names, digests = wiring.circuit_names(settings, providers), wiring.key_digests(providers)
        sender = wiring.build_sender(settings, providers, capacity)
        sender.engines = len(served)
        turns = Turns(capacity, batch=tuning.batch, most=tuning.in_flight)
        blocking = wiring.asyncio_clients(self._partitions, block_s=listen_s(len(served)))
        alone = [at.number for at in self._partitions] == [0]
        redises = [each.client for each in served]
        for at, redis, listening in zip(self._partitions, redises, blocking, strict=True):
            with under(at.prefixes):
                rq_jobs = ForkedRqJobs(self, self._functions, tuning, at.client, runs=alone)
                tracing = Tracing(redis, Spans()) if settings.tracing == "opentelemetry" else None
                idle = IdleWorker(listening, redis, self.name, lanes, len(served))
                parts = Parts(
                    name=self.name,
                    lanes=lanes,
                    redis=redis,
                    idle=idle,
                    sender=sender,
                    circuits=Circuits(redis, self.name, names, digests),
                    turns=turns,
                    rq_jobs=rq_jobs,
                    tuning=tuning,
                    tracing=tracing,
                )
                self._served.append(Served(at, parts, policies, version))
            self._rq_jobs = self._rq_jobs or rq_jobs
        return sender

    def clean_registries(self) -> None:
        """As RQ's, by Redis's clock: one that is hours ahead would remove jobs from RQ's registries too early."""
        self.last_cleaned_at: Any = rq_now()  # first: RQ tries again in ten minutes, even if it cannot read a job
        now_s: Any = self.connection.time()
        job_class = self._functions.guarded_job()
        for lane in self.queue_names():
            queue = self.queue_class(lane, connection=self.connection, job_class=job_class, serializer=JSONSerializer)
            if not queue.acquire_maintenance_lock():
                continue
            try:
                for registry in compat.cleaned_registries():
                    kept = registry(queue=queue, job_class=job_class, death_penalty_class=TimerDeathPenalty)
                    kept.cleanup(timestamp=int(now_s[0]))
                clean_worker_registry(queue)
                queue.intermediate_queue.cleanup(self, queue)
            finally:
                queue.release_maintenance_lock()  # type: ignore[no-untyped-call]

    def maintain_heartbeats(self, job: Any, *args: Any) -> None:
        """As RQ's, while a work horse runs; and hold the permit of a limited job. Goes on if Redis is away."""
        self._watchdog.feed()
        with contextlib.suppress(RedisError):
            super().maintain_heartbeats(job, *args)
            if self.connection.hget(self.key, LOOKED):  # else Redis lost the entry: the beat knows it by this field
                self.connection.hset(self.key, LOOKED, time_us(self.connection))
        if self._rq_jobs is not None:
            self._rq_jobs.hold()

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """As RQ's, but never raises Redis's errors: RQ also calls it before it kills a work horse."""
        with contextlib.suppress(RedisError):
            super().heartbeat(*args, **kwargs)

    def _pubsub_exception_handler(self, exc: Exception, *args: Any) -> None:
        """As RQ's, but without a line every two seconds while Redis is away, which the engine logs once.

        At the end, a thread that still waits for Redis fails as its connection closes: this is ignored.
        """
        if isinstance(exc, RedisConnectionError | RedisTimeoutError):
            self._hears_no_more.wait(HEARS_AGAIN_S)
        elif not self._hears_no_more.is_set():
            super()._pubsub_exception_handler(exc, *args)

    def unsubscribe(self) -> None:
        """As RQ's, but stop the listening thread before waking it: else it sleeps on for a second."""
        self._hears_no_more.set()
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()
        with contextlib.suppress(AttributeError):  # redis-py's, if the thread has just closed the connection itself
            super().unsubscribe()  # type: ignore[no-untyped-call]

    def _set_connection(self, connection: Any) -> Any:
        """Leave the connection's timeout as it is configured: unlike RQ's, no call here blocks for minutes."""
        return connection

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGQUIT, self.request_stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it outlives its terminal: nohup
            signal.signal(signal.SIGHUP, self.request_stop)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a signal handler
        """Warm shutdown: pull no more, and finish what is in flight within a grace time, which a second signal ends.

        SIGQUIT leaves no grace time. A job of another function that outlasts the grace time is killed, as by RQ's
        second signal.
        """
        now = time.monotonic()
        again = self._stopping_since is not None and now - self._stopping_since > REPEATED_S
        if self._stopping_since is None:
            self._stopping_since = now
            timer = threading.Timer(self._grace_s, self.kill_horse)
            timer.daemon = True
            timer.start()
        self._stop_requested = True
        if again or signum == signal.SIGQUIT:
            self.kill_horse()
            self._tell_engine("stop_now")
        self._tell_engine("stop")
        # In the loop: if the signal interrupts a line of the log, to log here would raise, and that line would be cut.
        self._in_loop(partial(self._structlog.info, "stopping", signal=signal.Signals(signum).name))

    def _tell_engine(self, method: Literal["stop", "stop_now"]) -> None:
        for each in self._served:
            self._in_loop(getattr(each.engine, method))

    def _in_loop(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(callback)

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Begin a work horse; kill it at once if a command has already stopped its job."""
        super().fork_work_horse(job, queue)
        if self._stopped_job_id == job.id:
            self.kill_horse()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """As RQ's, but the horse waits while Redis is away or takes no writes: to RQ that is the function's error."""
        pool = self.connection.connection_pool
        pool.connection_kwargs |= {"retry": Patience(), "retry_on_error": list(RETRIED)}  # redis-py 5 asks for both
        super().main_work_horse(job, queue)

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kill the work horse, if there is one. RQ's own kills its process group, which is this worker's at first."""
        if not (horse := self.horse_pid):
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(horse) == os.getpgrp():
                os.kill(horse, sig)
            else:
                super().kill_horse(sig)
