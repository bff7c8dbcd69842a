"""How many instructions Redis needs for a message, counted by callgrind: load on the machine moves them by 3 % at most.

`python -m benchmarks.instructions [count]`, and with `features` behind it what each feature costs a message that uses
it; it needs valgrind and redis-server. Beside the engine stand the commands alone that a message needs, which decide
nothing, as they are and with a packed record of each user; see `benchmarks.floor`. Each figure is the difference of two
runs, one with the messages and one without, so that what Redis does besides cancels out.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from benchmarks import floor
from benchmarks.features import FEATURES, Change, Feature, rates_with
from benchmarks.null_worker import RATES
from notifier import Device, Notification, Notifier
from notifier.queue import calls
from notifier.queue.calls import Leased, Measured, Settlement
from notifier.queue.history import Handed, Reply
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.rules.zones import zone_at
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run, script
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from tests.harness.take import publish_own_rules

BATCH: Final = 50
LEASE_US: Final = 10_000_000
WAIT_US: Final = 20_000_000
FIVE: Final = 5
EMPTY_LOOKS: Final = 200
WORKER: Final = "w" * 32
GAP: Final = RATES.replace("gap: 1ms", "gap: 10s")
NO_FEATURE: Final = Feature()
Phase = Callable[["Rounds"], object]


class Rounds:
    """What a worker with a null provider asks of Redis, by a clock of its own."""

    def __init__(self, redis: Any, rates: str, change: Change = NO_FEATURE.change) -> None:
        """change: what is done to each notification."""
        self._redis, self._settings, self._change = redis, parse_settings(rates), change
        self._rules = RuleTable(self._settings.policies(), LANES, lead_us=LEASE_US)
        self._keep = Retention.of(self._settings)
        self._now_us = time.time_ns() // 1000
        publish_own_rules(redis, self._rules)
        if (policies := self._settings.policies()).uses_local_time:
            redis.hset(self._rules.zones, policies.zone, zone_at(policies.zone, self._now_us).encode())

    def send(self, users: int, each: int = 1) -> None:
        """Accept notifications, those of a user one after the other."""
        Notifier(self._redis, self._settings).send_many(
            self._change(Notification(f"u{n // each}", [Device("fcm", f"{n:x>40}")], title="hi", body="b" * 200))
            for n in range(users * each)
        )

    def wait(self) -> None:
        """Let time pass until what waits may go."""
        self._now_us += WAIT_US

    def deliver(self, batch: int = BATCH) -> int:
        """Pull and settle until nothing more may go; returns how many went."""
        delivered = 0
        while True:
            self._now_us += 2_000
            pulled = self._pull(batch)
            if not (pulled.leased or pulled.taken):
                return delivered
            if pulled.leased:
                self._settle(pulled.leased)
            delivered += len(pulled.leased)

    def look(self, times: int) -> None:
        """Look for work where there is none; a worker settles nothing then."""
        for _ in range(times):
            self._pull()

    def load(self, scripts: floor.Scripts) -> None:
        """Have Redis compile such scripts."""
        for text in (scripts.wait, scripts.lease, scripts.settle):
            self._redis.script_load(text)

    def drive(self, scripts: floor.Scripts) -> int:
        """Have scripts of `benchmarks.floor` do it; returns how many went."""
        return floor.drive(self._redis, scripts, BATCH)

    def _pull(self, batch: int = BATCH) -> calls.Pulled:
        worker = calls.Worker(name=WORKER, lanes=LANES, lease_us=LEASE_US, keep=self._keep, clock=str(self._now_us))
        return run(self._redis, calls.pull(worker, calls.Room(batch, by_route={"fcm": 1000}), self._rules))

    def _settle(self, leased: list[Leased]) -> None:
        self._now_us += 2_000
        handed = Handed(1.0, [Reply("fcm", 200, 0.002, "delivered")])
        settlements = [
            Settlement(
                *(each.job_id, each.permit, each.user, each.category, True, "delivered", "delivered"),
                route="fcm",
                handed=handed,
            )
            for each in leased
        ]
        call = calls.settle(
            settlements,
            self._rules,
            calls.Worker(name=WORKER, keep=self._keep, clock=str(self._now_us)),
            measured=Measured(
                ["default|fcm"] * len(settlements),
                {"late|default|0": len(leased), "late|default|s": 50, "answer|fcm|1": len(leased)},
                1.002,
            ),
        )
        run(self._redis, call)


@contextlib.contextmanager
def counted_redis(folder: Path) -> Iterator[Redis]:
    """A Redis of its own whose instructions are counted; `counted_in` reads how many, once it has ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    count = ["valgrind", "--tool=callgrind", "--vgdb=no", f"--callgrind-out-file={folder}/out", "--quiet"]
    server = ["redis-server", *f"--port {port} --bind 127.0.0.1 --appendonly no --hz 1".split(), "--save", ""]
    process = subprocess.Popen([*count, *server], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with contextlib.closing(Redis(port=port, protocol=2, socket_timeout=600)) as redis:
        while True:
            with contextlib.suppress(RedisConnectionError):
                redis.ping()
                break
            time.sleep(0.05)
        try:
            yield redis
        finally:
            redis.shutdown(nosave=True)
            process.wait()


def counted_in(folder: Path) -> int:
    """The instructions that were counted."""
    found = re.search(r"^(?:totals|summary): (\d+)", (folder / "out").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit("callgrind has counted nothing")
    return int(found[1])


def instructions(rates: str, *phases: Phase, change: Change = NO_FEATURE.change, delivers_all: bool = False) -> int:
    """The instructions of all these, one after the other, and of a Redis that starts and ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with counted_redis(folder) as redis:
            rounds = Rounds(redis, rates, change)
            for verb in ("pull", "settle"):
                redis.script_load(script(verb).source)  # so that none is compiled in one run alone
            rounds.send(1)
            rounds.deliver()
            rounds.wait()
            for phase in phases:
                phase(rounds)
            accepted, delivered = redis.hmget(redis_key("stats"), "accepted", "delivered")
            if delivers_all and accepted != delivered:
                raise SystemExit("not all notifications were delivered")
        return counted_in(folder)


@dataclass(frozen=True, slots=True)
class Case:
    """The rates, what comes before, what is counted, and how often. needed: the scripts that do the same, or None."""

    rates: str
    before: tuple[Phase, ...]
    phase: Phase
    times: int
    needed: floor.Scripts | None = None


def cases(count: int) -> dict[str, Case]:
    """What the table tells of, by its name."""

    def wait_and_deliver(rounds: Rounds) -> None:
        rounds.deliver()
        rounds.wait()
        rounds.deliver()

    def once(rounds: Rounds) -> None:
        rounds.send(count)

    def few(rounds: Rounds) -> None:
        rounds.send(EMPTY_LOOKS)

    def fives(rounds: Rounds) -> None:
        rounds.send(count // FIVE, FIVE)

    at_once, later = floor.AT_ONCE, floor.AFTER_A_WAIT
    no_gap = RATES.replace(", gap: 1ms", "")
    return {
        "goes at once": Case(RATES, (once,), Rounds.deliver, count, at_once),
        "waits first": Case(GAP, (once, Rounds.deliver, once), wait_and_deliver, count, later),
        "five of one user in a batch": Case(no_gap, (fives,), Rounds.deliver, count // FIVE * FIVE, at_once),
        "alone in its round": Case(RATES, (few,), lambda rounds: rounds.deliver(1), EMPTY_LOOKS),
        "a look that finds nothing": Case(RATES, (), lambda rounds: rounds.look(EMPTY_LOOKS), EMPTY_LOOKS),
    }


def features(count: int) -> dict[str, float]:
    """By the name of a feature: how many instructions a message that uses it needs that goes at once."""

    def send(rounds: Rounds) -> None:
        rounds.send(count)

    found = {}
    for name, feature in {"none": NO_FEATURE, **FEATURES}.items():
        rates, change = rates_with(feature, count), feature.change
        delivered = instructions(rates, send, Rounds.deliver, change=change, delivers_all=True)
        found[name] = (delivered - instructions(rates, send, change=change)) / count
    return found


def needed(case: Case, scripts: floor.Scripts, mark: str) -> float:
    """How many instructions a message needs of these scripts, which decide nothing. mark: of the lines to leave out."""
    scripts, first = scripts.without(mark), floor.AT_ONCE.without(mark)

    def load(rounds: Rounds) -> None:
        rounds.load(scripts)
        rounds.load(first)

    def at_once(rounds: Rounds) -> None:
        rounds.drive(first)

    def drive(rounds: Rounds) -> None:
        if rounds.drive(scripts) != case.times:
            raise SystemExit("not all messages came to their end by the needed commands")

    before = [load, *(at_once if phase is Rounds.deliver else phase for phase in case.before)]
    return (instructions(case.rates, *before, drive) - instructions(case.rates, *before)) / case.times


def main(count: int, *more: str) -> None:
    """Print the table. more: 'features' for that table."""
    for program in ("valgrind", "redis-server"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not installed")
    print(f"thousands of Redis's instructions, {count:,} messages, {BATCH} at a time, with history")
    if more:
        found = features(count)
        for name, each in found.items():
            print(f"{name:<40} {each / 1000:8.1f} {each / found['none']:8.2f} x")
        return
    print(f"{'':<30}" + "".join(f"{title:>16}" for title in ("engine", *floor.WAYS)))
    for name, case in cases(count).items():
        difference = instructions(case.rates, *case.before, case.phase, delivers_all=True)
        difference -= instructions(case.rates, *case.before)
        print(f"{name:<30}{difference / case.times / 1000:16.1f}", end="", flush=True)
        for mark in floor.WAYS.values() if case.needed else ():
            print(f"{needed(case, case.needed, mark) / 1000:16.1f}", end="", flush=True)
        print()


if __name__ == "__main__":
    how_many, *others = sys.argv[1:] or ["2000"]
    main(int(how_many), *others)
