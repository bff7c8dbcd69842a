"""A contest: several clients race on one server, in turns, so that what slows the machine slows them alike."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.harness import Bar, Figure, median
from benchmarks.providers.peers import PEERS, python_of
from benchmarks.providers.task import KEY_ID, Task
from notifier.simulators.certificates import Certificates, make_apns_key, make_certificates
from notifier.simulators.fcm import make_service_account
from tests.harness.processes import child, environment

PACKAGE: Final = "benchmarks.providers"
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A client. program: its module in `contestants`; peer: whose environment it runs in, ours if none is named."""

    name: str
    program: str
    peer: str = ""
    in_flight: int = 0  # where it is not the contest's
    warm_up_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to: sends a second, µs of the client's processor a send, its share of one core."""

    rate: float
    cpu_us: float
    busy: float


Races: TypeAlias = dict[str, list[Run]]  # by the contestant's name, a run a round


def run(contestant: Contestant, task: Task) -> Run:
    """Let one client race once."""
    task = replace(task, in_flight=contestant.in_flight or task.in_flight, warm_up_s=contestant.warm_up_s)
    python = python_of(contestant.peer) if contestant.peer in PEERS else sys.executable
    command = [python, "-m", f"{PACKAGE}.contestants.{contestant.program}", task.write()]
    ended = subprocess.run(command, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False)
    if ended.returncode or not ended.stdout:
        raise RuntimeError(f"{contestant.name}: {ended.stderr.decode(errors='replace')[-2000:]}")
    return Run(**json.loads(ended.stdout))


def race(contestants: Sequence[Contestant], task: Task, rounds: int) -> Races:
    """Let each race once a round."""
    runs: Races = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            runs[contestant.name].append(run(contestant, task))
    return runs


def figure(name: str, runs: Sequence[Run]) -> Figure:
    """The line of one contestant."""
    cpu_us, busy = median([each.cpu_us for each in runs]), median([each.busy for each in runs])
    note = f"{cpu_us:.0f} µs of CPU a send, {100 * busy:.0f} % of a core"
    return Figure(name, median([each.rate for each in runs]), "/s", None, note)


def ratio(name: str, ours: Sequence[Run], theirs: Sequence[Run], bar: Bar | None, note: str = "") -> Figure:
    """How many times as fast, round by round: the median."""
    return Figure(name, median([a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]), "x", bar, note)


def make_identity(folder: Path) -> Certificates:
    """Certificates, a provider key and a service account for a contest."""
    make_apns_key(folder, KEY_ID)
    make_service_account(folder, "https://127.0.0.1/token", "benchmark")
    return make_certificates(folder)


@contextlib.contextmanager
def server(program: str, certificates: Certificates, *arguments: str) -> Iterator[int]:
    """A server as a process of its own; gives its port."""
    command = ["-m", f"{PACKAGE}.{program}", str(certificates.cert_file), str(certificates.key_file), *arguments]
    with child(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{program} did not start")
        yield int(line)
