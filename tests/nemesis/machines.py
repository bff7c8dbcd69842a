"""What a run consists of: Redis, a process for each provider, workers; and how each is killed, stopped and started."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import yaml
from redis import Redis

from notifier.errors import RedisUnusableError, SettingsError
from notifier.scripts.keys import rq_key, under
from notifier.settings import Settings, load_settings
from notifier.simulators.control import tell
from notifier.simulators.faults import UnusableError
from notifier.store.partitions import Partition, Partitions, connect_all
from notifier.testing.ports import free_port
from tests.faults.cluster import RedisCluster
from tests.harness.mortal_redis import MortalRedis
from tests.harness.processes import environment
from tests.nemesis.history import History, wall_us
from tests.nemesis.provider_process import make_identity
from tests.nemesis.rates_book import RATES, Rules, sections

HERE: Final = Path(__file__).parent
LEASE_S: Final = 3.0
START_S: Final = 30.0
KEPT: Final = {"keep_delivered": "2h", "keep_failed": "1d"}  # so that each can be asked for in the end


class Machine:
    """A process that can be killed, stopped, and started again."""

    def __init__(self, name: str, command: list[str], log: Path, environ: dict[str, str]) -> None:
        self.name = name
        self.log = log
        self.began_us = wall_us()
        self.died_us: int | None = None
        self.ended_by: str | None = None  # what the run did to it; None while nobody did
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environ, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self.ended_by = number.name
        self.process.send_signal(number)

    def reap(self, within_s: float = 0.0) -> bool:
        """Note when it died; whether it has."""
        if self.died_us is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(within_s) if within_s else None
            if not self.alive:
                self.died_us = wall_us()
        return self.died_us is not None

    def lines(self) -> list[dict[str, Any]]:
        """What it logged as JSON, each with `at_us`."""
        found = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "timestamp" in entry:
                    entry["at_us"] = round(datetime.fromisoformat(entry["timestamp"]).timestamp() * 1e6)
                    found.append(entry)
        return found


@dataclass
class Told:
    """Rates that workers were told of: where (the file, or Redis), and when."""

    name: str
    where: str
    settings: Settings
    since_us: int


class Machines:
    """All of one run, in a folder. lanes: what each worker serves, as its command line says; one like it follows it."""

    def __init__(
        self,
        folder: Path,
        history: History,
        lanes: list[tuple[str, ...]],
        *,
        rates: str = "base",
        cluster: RedisCluster | None = None,
        partitions: int = 1,
    ) -> None:
        """cluster: in which the fleet has so many slots, in the place of one Redis."""
        self.folder, self.history, self.lanes = folder, history, lanes
        self.workers: list[Machine] = []
        self.providers: dict[str, Machine] = {}
        self.ports = {"apns": free_port(), "fcm": free_port()}
        self.cluster, self.partitions = cluster, partitions
        self.config = folder / "notifier.yaml"
        self.told: list[Told] = []
        self._numbers = 0
        self._rates = rates

    def __enter__(self) -> Self:
        self.server: Any = self.cluster or MortalRedis(appendonly=True)
        self.server.__enter__()
        try:
            self.sections = make_identity(self.folder, self.ports["apns"], self.ports["fcm"])
            # In ten minutes one device gets more that collapses than Google lets it: what waits then would not end.
            self.sections["fcm"]["limits"] = {"collapsible": None}
            self.write_rates(self._rates)
            self.settings = load_settings(self.config, {})
            for platform in self.ports:
                self.start_provider(platform)
            for index in range(len(self.lanes)):
                self.start_worker(index)
            for each in self.ports:
                self.await_provider(each)
            _await(lambda: len(self._registered()) >= len(self.lanes), "the workers to register")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for machine in [*self.workers, *self.providers.values()]:
            if machine.alive:
                machine.process.send_signal(signal.SIGCONT)
                machine.process.kill()
            machine.process.wait()
        if self.cluster is None:
            with contextlib.suppress(ProcessLookupError, RedisUnusableError):
                os.kill(self.server.pid, signal.SIGCONT)
        self.server.__exit__(None, None, None)

    # Redis.

    @contextlib.contextmanager
    def clients(self, socket_timeout: float | None = None) -> Iterator[Partitions]:
        """Clients of the run's own."""
        given = {} if socket_timeout is None else {"socket_timeout_us": round(socket_timeout * 1e6)}
        if self.cluster is None:
            made = Partitions.around(Redis.from_url(self.server.url, socket_timeout=socket_timeout))
        else:
            made = connect_all(self.settings.redis.model_copy(update=given))
        with contextlib.closing(made):
            yield made

    def each(self, socket_timeout: float | None = None) -> Iterator[Partition]:
        """Each partition, by a client of the run's own; keys are named as there."""
        with self.clients(socket_timeout) as partitions:
            for at in partitions:
                with under(at.prefixes):
                    yield at

    # Workers.

    def _registered(self) -> set[bytes]:
        return {key.rpartition(b":")[2] for at in self.each() for key in at.client.smembers(rq_key("workers"))}

    def start_worker(self, index: int) -> Machine:
        """Start a worker that serves the lanes of this place."""
        self._numbers += 1
        name = f"w{self._numbers}"
        command = [sys.executable, str(HERE / "hasty_worker.py"), "--name", name, *self.lanes[index]]
        path = {"NOTIFIER_CONFIG": str(self.config)}
        worker = Machine(name, command, self.folder / f"{name}.log", environment(path))
        self.workers.append(worker)
        self.history.add(f"start {name} for {' '.join(self.lanes[index])}")
        return worker

    def place_of(self, worker: Machine) -> int:
        """Which place a worker has: what `start_worker` takes for one with the same lanes."""
        arguments: Any = worker.process.args
        return self.lanes.index(tuple(arguments[arguments.index(worker.name) + 1 :]))

    @property
    def running(self) -> list[Machine]:
        """The workers that live, stopped ones too."""
        return [worker for worker in self.workers if worker.alive]

    # Providers.

    def start_provider(self, platform: str) -> None:
        """Start the simulator of a platform, again at the same place."""
        command = [sys.executable, str(HERE / "provider_process.py"), platform, str(self.folder)]
        command.append(str(self.ports[platform]))
        self.providers[platform] = Machine(platform, command, self.folder / f"{platform}.log", environment())

    def await_provider(self, platform: str) -> None:
        """Return when it listens."""
        _await(lambda: self.tell(platform, {}), f"the simulator of {platform} to listen")

    def tell(self, platform: str, document: dict[str, Any]) -> bool:
        """Tell a simulator what to do wrong; whether it heard it."""
        try:
            tell(self.folder / f"{platform}.socket", {platform: document} if document else {})
        except UnusableError:
            return False
        return True

    # Rates.

    def write_rates(self, name: str) -> None:
        """Replace the configuration, as a deployment does."""
        new = self.folder / "new.yaml"
        new.write_text(self._text(name), encoding="utf-8")
        settings = load_settings(new, {})
        self.told.append(Told(name, "file", settings, wall_us()))
        new.replace(self.config)

    def begin_to_write(self, name: str, part: float) -> Settings | None:
        """Write such a part of the configuration in place, and stop there; what it says, if it says anything."""
        text = self._text(name)
        begun = self.folder / "begun.yaml"
        for path in (begun, self.config):
            path.write_text(text[: int(len(text) * part)], encoding="utf-8")
        with contextlib.suppress(SettingsError):
            return load_settings(begun, {})
        return None

    def _text(self, name: str) -> str:
        document = {
            "redis": {"url": self.server.url, "socket_timeout": "1s", "partitions": self.partitions},
            **sections(name),
            "providers": self.sections,
            "worker": {"lease": f"{LEASE_S:g}s", "grace": "4s", "backoff": {"first": "50ms", "most": "400ms"}},
            "log": {"format": "json", "level": "debug"},  # the judge wants to know of each try
            **KEPT,
        }
        return yaml.safe_dump(document, sort_keys=False)

    def apply_rates(self, name: str) -> subprocess.Popen[str]:
        """Begin `notifier config apply`."""
        path = self.folder / "applied.yaml"
        path.write_text(yaml.safe_dump({**sections(name), "providers": self.sections}), encoding="utf-8")
        self.told.append(Told(name, "redis", load_settings(path, {}), wall_us()))  # also where its answer is lost
        return self._command("apply", str(path), "--in", "500ms", "--yes", "--replace")

    def withdraw_rates(self) -> subprocess.Popen[str]:
        """Begin `notifier config withdraw`."""
        return self._command("withdraw", "--yes")

    def _command(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "notifier.cli", "--config", str(self.config), "config", *arguments]
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment(), **output)

    def rules(self) -> tuple[list[Rules], list[tuple[int, str]]]:
        """Which rates were in force when, by the workers' own logs; and what they took up that nobody had written.

        A worker goes by what it says that it took up until it says so of others, or is dead. By what it began is not
        in its log: by any that it may have found then.
        """
        names = {told.settings.rates_version: told for told in self.told}
        spans: dict[str, list[tuple[int, int]]] = {version: [] for version in names}
        strange: list[tuple[int, str]] = []
        for worker in self.workers:
            changes = [(line["at_us"], line["version"]) for line in worker.lines() if line["event"] == TAKEN_UP]
            ends = [*(at_us for at_us, _ in changes), worker.died_us or NEVER]
            for version in self._at_start(worker):
                spans[version].append((worker.began_us, ends[0]))
            for (since_us, version), until_us in zip(changes, ends[1:], strict=True):
                if version in spans:
                    spans[version].append((since_us, until_us))
                else:
                    strange.append((since_us, f"{worker.name} took up the rates {version}, which nobody had written"))
        rules = [Rules(told.name, told.settings.policies(), tuple(spans[version])) for version, told in names.items()]
        return rules, strange

    def _at_start(self, worker: Machine) -> set[str]:
        known_us = worker.began_us + int(START_S * 1e6)
        told = [one for one in self.told if one.since_us <= known_us]
        files = [one for one in told if one.where == "file"]
        before = [one for one in files if one.since_us <= worker.began_us][-1:]
        found = [*before, *(one for one in files if one.since_us > worker.began_us)]
        found += [one for one in told if one.where == "redis"]
        return {one.settings.rates_version for one in found}


TAKEN_UP: Final = "config_taken_up"
NEVER: Final = 2**62
NAMES: Final = tuple(RATES)


def _await(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {START_S:g} s")
        time.sleep(0.05)
