"""A fleet: a Redis of its own, the simulators and real worker processes, and what came over the wire."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self

import yaml

from notifier import Device, Notification, Notifier
from notifier.notification.job import TERMINAL
from notifier.rules.verify import ACCEPTED, Send, tightness
from notifier.scripts.keys import under
from notifier.settings import Settings, load_settings
from notifier.simulators.control import tell
from notifier.simulators.wire import Arrival, WireLog
from notifier.store.partitions import Partitions, connect_all
from tests.harness.mortal_redis import MortalRedis
from tests.harness.processes import await_that, await_workers, child, environment, stop, total


def notification(user: str, number: int, category: str = "default", **more: Any) -> Notification:
    """One for one iPhone of the user; the simulator sees its number as data.n."""
    device = Device("apns", f"{number:064x}")
    return Notification(user=user, devices=[device], title="hi", category=category, data={"n": str(number)}, **more)


class RedisServer(Protocol):
    """Anything that a Redis answers at."""

    @property
    def url(self) -> str:
        """For clients."""


MAX_SHOWN: Final = 20_000  # characters of a worker's log
PATIENCE_US: Final = 60_000_000


def patient(settings: Settings) -> Settings:
    """The same for who is no subject of the test: a pause of Redis is no error to it, however hasty the workers are."""
    redis = settings.redis.model_copy(update={"socket_timeout_us": PATIENCE_US})
    return settings.model_copy(update={"redis": redis})


@dataclass
class Fleet:
    """What runs. server and partitions: the Redis, and clients of the test's own; workers: the processes, in order.

    stops: of the workers by `stopped`, from and to, in seconds since 1970.
    """

    folder: Path
    server: Any
    partitions: Partitions
    config: Path
    settings: Settings
    wire_log: Path
    simulators_pid: int
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stops: list[tuple[float, float]] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        self.end_workers()
        if isinstance(error, subprocess.TimeoutExpired):  # its log holds where it stood
            for worker in self.workers:
                worker.wait()
            for log in self.logs():
                error.add_note(log)
        self._stack.close()

    @property
    def redis(self) -> Any:
        """A client, of the first partition."""
        return self.partitions[0].client

    def start_worker(self, arguments: Sequence[str] = ("-m", "workers"), more: Sequence[str] = ()) -> str:
        """Start one more worker; returns its name in RQ. more: its options. What it logs is in `<name>.log`."""
        name = f"worker-{next(self._names)}"
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        extra = {"NOTIFIER_CONFIG": str(self.config), "NOTIFIER_REDIS_URL": self.server.url}
        command = [*arguments, *more, "--name", name]
        self.workers.append(self._stack.enter_context(child(command, env=environment(extra), stdout=log, stderr=log)))
        return name

    def logs(self, most: int = MAX_SHOWN) -> list[str]:
        """The last characters of what each worker has logged."""
        ends = {log.name: log.read_text(errors="replace")[-most:] for log in sorted(self.folder.glob("worker-*.log"))}
        return [f"{name}:\n{end}" for name, end in ends.items()]

    def leased(self) -> dict[str, str]:
        """The name of the worker that has each job."""
        job_ids = [job_id.decode() for job_id in self.redis.zrange("notifier:leases", 0, -1)]
        with self.redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(f"rq:job:{job_id}", "worker_name")
            return {job_id: (name or b"").decode() for job_id, name in zip(job_ids, pipe.execute(), strict=True)}

    def end_workers(self) -> None:
        """Tell all workers to stop at once, and wait for none: leaving the fleet does."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.send_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[set[str]]:
        """Let the workers stand still; gives the jobs that they have, what they have just asked for among them."""
        began = time.time()
        for worker in self.workers:
            stop(worker.pid)
        for _ in range(2):  # when it looks again, Redis has done all that stood in its sockets
            leased = self.redis.zrange("notifier:leases", 0, -1)
        yield {job_id.decode() for job_id in leased}
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
        self.stops.append((began, time.time()))

    @contextlib.contextmanager
    def notifier(self, *, hasty: bool = False) -> Iterator[Notifier]:
        """A producer. hasty: one that waits for Redis as long as the settings say; else a minute."""
        with Notifier.of(self.settings if hasty else patient(self.settings)) as notifier:
            yield notifier

    def total(self, *states: str) -> int:
        """How many have come to these states, in all partitions."""
        found = 0
        for at in self.partitions:
            with under(at.prefixes):
                found += total(at.client, *states)
        return found

    def arrivals(self) -> list[Arrival]:
        """What the simulators took so far, in order of arrival."""
        return sorted((a for a in WireLog.read(self.wire_log) if a.status == ACCEPTED), key=lambda a: a.at_us)

    def await_delivered(self, count: int, within_s: float = 60.0) -> None:
        """Return when at least so many have been delivered; for a fault in the middle of the work."""
        await_that(lambda: self.total("delivered") >= count, f"{count} delivered", within_s)

    def await_ended(self, count: int, within_s: float = 60.0) -> None:
        """Return when so many notifications have come to a terminal state."""
        try:
            await_that(lambda: self.total(*TERMINAL) >= count, f"{count} ended", within_s, 0.02)
        except TimeoutError as error:
            held: Any = self.redis.hgetall("notifier:stats")
            stats = {name.decode(): int(value) for name, value in held.items()}
            raise TimeoutError(f"{error}: {stats}; {self.logs(600)}") from None


def sends(arrivals: Sequence[Arrival], who: Mapping[int, tuple[str, str]]) -> list[Send]:
    """Each arrival as a send of its own, repeats too. who: for each number the user and the category."""
    found = []
    for arrival in arrivals:
        user, category = who[int(arrival.data["n"])]
        found.append(Send(arrival.data["n"], user, category, arrival.at_us, arrival.at_us))
    return found


def broken_rules(fleet: Fleet, of: Sequence[Send]) -> list[str]:
    """The rules that were broken at the wire; with them what arrived of these users, and what the workers logged."""
    broken = [entry for entry in tightness(of, fleet.settings.policies()) if entry.broken]
    users = {entry.user for entry in broken}
    said = [line for entry in broken for line in entry.broken]
    said += [f"{send.first_us} {send.user} {send.category} {send.name}" for send in of if send.user in users]
    if broken:
        said += [f"the workers stood still: {fleet.stops}", *fleet.logs()]
    return said


@contextlib.contextmanager
def start_fleet(
    rates: Mapping[str, Any],
    *,
    workers: int = 4,
    latency_ms: float = 0.0,
    scripts: Mapping[str, Any] | None = None,
    apns: Mapping[str, Any] | None = None,
    fcm: Mapping[str, Any] | None = None,
    appendonly: bool = False,
    redis_server: contextlib.AbstractContextManager[RedisServer] | None = None,
    begin: Mapping[str, Any] | None = None,
) -> Iterator[Fleet]:
    """Start everything, workers registered and idle. rates: the YAML but for its providers.

    scripts: what the simulators answer, by token. apns: further keys of `providers.apns`. fcm: those of
    `providers.fcm`, which is left out where it is None. redis_server: else one of its own. begin: what the simulators
    are told from the start.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="push-throttle-")))
        server = stack.enter_context(redis_server or MortalRedis(appendonly=appendonly))
        told: dict[str, Any] = {"scripts": scripts or {}, **(begin or {})}
        for platform in ("apns", "fcm") if latency_ms else ():
            told[platform] = {"latency_ms": latency_ms, **told.get(platform, {})}
        listening = stack.enter_context(simulators(folder, told))
        config = folder / "notifier.yaml"
        providers = {"apns": {**listening["apns"], **(apns or {})}}
        if fcm is not None:
            providers["fcm"] = {**listening["fcm"], **fcm}
        document = {**rates, "providers": providers}
        config.write_text(yaml.safe_dump(document), encoding="utf-8")
        os.utime(config, (0, 0))  # a worker that starts waits for a new one to be whole
        settings = load_settings(config, {"NOTIFIER_REDIS_URL": server.url})
        partitions = connect_all(patient(settings).redis)
        for at in partitions:
            stack.enter_context(contextlib.closing(at.client))
        wire_log = Path(listening["wire_log"])
        fleet = Fleet(folder, server, partitions, config, settings, wire_log, listening["pid"])
        stack.enter_context(fleet)
        for _ in range(workers):
            fleet.start_worker()
        with under(partitions[0].prefixes):
            await_workers(fleet.redis, workers)
        yield fleet


@contextlib.contextmanager
def simulators(folder: Path, told: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The simulators as a process, told this before anybody sends; gives what they say of themselves."""
    with child(["-m", "notifier.simulators", "--folder", str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the simulators did not start")
        listening = json.loads(line)
        tell(Path(listening["control"]), told)
        yield {**listening, "pid": process.pid}
