"""Workers that die all the time under load, and what must be true of it in the end: the short and the long form."""

import itertools
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from notifier import Notification
from notifier.notification.job import TERMINAL
from notifier.rules.category import LANES
from tests.faults.consistency import assert_consistent, assert_empty_of_work
from tests.faults.mortal_worker import STEPS
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that, await_workers, total

MORTAL: Final = str(Path(__file__).with_name("mortal_worker.py"))
ALONE_S: Final = 2.0
CATEGORIES: Final = ("chat", "default", "marketing")  # one for each lane
RATES: Final[Mapping[str, Any]] = {
    "user": {"windows": ["3/1s"], "gap": "40ms"},
    "categories": {
        "chat": {"lane": "urgent", "windows": ["4/2s"]},
        "default": {"lane": "default"},
        "marketing": {"lane": "bulk"},
    },
    # Much longer than the living are stopped for (ALONE_S): who stands still for a lease with a request that it is
    # about to write, writes it when it goes on.
    "worker": {"lease": "5s", "grace": "2s"},
}


@dataclass
class Outcome:
    """What came of it. repeats_allowed: what the dead had in flight, and what was retried. failed: the reasons.

    ids: of each number. poisoned: the numbers that were put aside because three workers died on them. With so many
    deaths that happens to some that have no part in them: twice in a batch, and the third time alone; they may have
    arrived nevertheless.
    """

    count: int
    ids: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    repeats_allowed: int = 0
    repeats: int = 0
    missing: set[int] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    poisoned: set[int] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)

    def assert_right(self) -> None:
        """Laws 1 and 2 over the whole of it."""
        assert self.missing <= self.poisoned, f"{self.missing - self.poisoned} never arrived"
        assert self.failed == [], self.failed
        whole = {"delivered": self.count - len(self.poisoned), "failed": len(self.poisoned)}
        assert self.ended == {word: whole.get(word, 0) for word in TERMINAL}
        assert len(self.poisoned) <= self.kills.total(), "a death blames one alone"
        assert self.broken == [], self.broken
        assert self.repeats <= self.repeats_allowed


def unleash(*, count: int, users: int, kills: int, workers: int = 3, seed: int = 1) -> Outcome:
    """Send so many through workers of which so many die, two of three at the next named step and one at any moment.

    They are sent in as many shares as there are deaths. With five for each user in a share the user's gap alone makes
    for the five looks that a worker lives at most.
    """
    chance = random.Random(seed)
    who = {n: (f"u{n % users}", CATEGORIES[n // users % len(CATEGORIES)]) for n in range(count)}
    outcome, steps = Outcome(count), itertools.cycle(STEPS)
    with start_fleet(RATES, workers=0, latency_ms=15, apns={"timeout": "500ms"}) as fleet:
        for _ in range(workers):
            fleet.start_worker()
        await_workers(fleet.redis, workers)
        for kill in range(kills):
            share = range(count * kill // kills, count * (kill + 1) // kills)
            fleet.await_delivered(share.start // 2, 600)
            step = next(steps) if kill % 3 else "any moment"
            _kill_at(fleet, step, chance, [_of(n, who) for n in share], outcome)
        fleet.await_ended(count, 600)
        _judge(fleet, outcome, who)
    return outcome


def _of(number: int, who: Mapping[int, tuple[str, str]]) -> Notification:
    user, category = who[number]
    return notification(user, number, category)


def _kill_at(fleet: Fleet, step: str, chance: random.Random, share: Sequence[Notification], outcome: Outcome) -> None:
    """Let one worker die, look at what it leaves behind, and put another in its place.

    share: is sent for it, so that it has something to do, however long it took to start.
    """
    at_once = step == "any moment"
    if at_once:
        _send(fleet, share, outcome)
        victim = chance.randrange(len(fleet.workers))
    else:
        name = fleet.start_worker((MORTAL, "--step", step, "--at", str(chance.randint(1, 5))))
        victim = len(fleet.workers) - 1
        await_that(lambda: fleet.redis.exists(f"rq:worker:{name}"), "its birth")
    dying = fleet.workers.pop(victim)
    with fleet.stopped():  # so that they do not take what it has
        if at_once:
            dying.kill()
        else:
            _send(fleet, share, outcome)
        dead = _dies(fleet, dying, outcome)
    while not dead:  # the living may have leased what it waits for
        others = {job_id for job_id, worker in fleet.leased().items() if worker != _name(dying)}
        await_that(lambda: others.isdisjoint(fleet.leased()), "the answers to what the living sent")  # noqa: B023
        with fleet.stopped():
            dead = _dies(fleet, dying, outcome)
    outcome.kills[step] += 1
    if at_once:
        fleet.start_worker()


def _dies(fleet: Fleet, process: subprocess.Popen[bytes], outcome: Outcome) -> bool:
    """Wait for its death, for much less than a lease; look at what it leaves behind."""
    try:
        status = process.wait(ALONE_S)
    except subprocess.TimeoutExpired:
        return False
    assert status == -signal.SIGKILL, f"it ended by itself, with status {status}"
    outcome.repeats_allowed += list(fleet.leased().values()).count(_name(process))
    assert_consistent(fleet.redis)
    return True


def _send(fleet: Fleet, share: Sequence[Notification], outcome: Outcome) -> None:
    with fleet.notifier() as notifier:
        notifier.send_many(share, on_accepted=outcome.ids.extend)


def _name(process: subprocess.Popen[bytes]) -> str:
    arguments: Any = process.args
    return str(arguments[arguments.index("--name") + 1])


def _judge(fleet: Fleet, outcome: Outcome, who: Mapping[int, tuple[str, str]]) -> None:
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(60)
    assert_empty_of_work(fleet.redis)
    arrivals = fleet.arrivals()
    outcome.missing = set(who) - {int(arrival.data["n"]) for arrival in arrivals}
    outcome.repeats = len(arrivals) - (outcome.count - len(outcome.missing))
    outcome.repeats_allowed += total(fleet.redis, "retried")  # an answer came later than the timeout
    # A worker that a loaded machine let wait for longer than its lease was taken for dead while it sent, and says so.
    outcome.repeats_allowed += sum(log.read_bytes().count(b"lease_lost") for log in fleet.folder.glob("worker-*.log"))
    outcome.broken = broken_rules(fleet, sends(arrivals, who))
    outcome.ended = {word: total(fleet.redis, word) for word in TERMINAL}
    with fleet.notifier() as notifier:
        for lane in LANES:
            for job_id in fleet.redis.zrange(f"rq:failed:{lane}", 0, -1):
                status = notifier.status(job_id.decode())
                reason = str(status and status.reason)
                if "3 workers died while sending it" in reason:
                    outcome.poisoned.add(outcome.ids.index(job_id.decode()))
                else:
                    outcome.failed.append(reason)
