"""`make nemesis`: everything real, much goes wrong at random, and the laws are held against what came of it.

python -m tests.nemesis.nemesis [--seconds 600] [--seed N] [--cluster PARTITIONS] [--leave-out DEED …]
"""

import argparse
import contextlib
import heapq
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError

from notifier import Notifier
from notifier.errors import NotifierError
from notifier.notification.job import TERMINAL
from notifier.rules.category import LANES
from notifier.scripts.keys import RQ_VARIABLE, redis_key, rq_key
from notifier.simulators.wire import Arrival, WireLog
from notifier.store.published import followers
from notifier.store.tags import tag_of
from tests.faults.cluster import RedisCluster
from tests.faults.consistency import audit, work_left
from tests.nemesis.deeds import OF_CLUSTER, OF_ONE, POLL_S, WEIGHTS, Begun, Deeds, plan
from tests.nemesis.history import History
from tests.nemesis.judge import Facts, Violation, broken_off, judge, number_of
from tests.nemesis.machines import Machines
from tests.nemesis.traffic import Traffic
from tests.nemesis.web import Web

FLEETS: Final = (
    [LANES, LANES, LANES],
    [LANES, LANES, ("urgent",), ("default",), ("bulk",)],
    [("urgent",), ("default",), ("bulk",), ("urgent", "default")],
)
PER_S: Final = 14.0  # notifications that the traffic accepts
EVERY_S: Final = 0.9  # between two deeds
FIRST_S: Final = 1.0  # before the first
AUDIT_S: Final = 5.0
# What a worker may end with as it starts, and be started again: Redis is not there, or half a file stands for seconds.
DOWN: Final = re.compile(r"^(?:Redis (?:at|does)|\S+/notifier\.yaml:\d+|providers\.).*\n*\Z", re.MULTILINE)
NEVER_S: Final = float("inf")
CALM_S: Final = 90.0  # until all must have ended, once nothing goes wrong any more
BEFORE_US, AFTER_US = 4_000_000, 500_000  # of a violation, in its story
LINES: Final = 120


@dataclass
class Verdict:
    """What came of a run."""

    seed: int
    violations: list[Violation]
    facts: Facts
    history: History
    drained_s: float
    deeds: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """One paragraph for people."""
        facts = self.facts
        states = Counter(state or "unknown" for state in facts.states.values())
        said = ", ".join(f"{n} {state}" for state, n in states.most_common())
        repeats = len(facts.arrivals) - len({(number_of(a), a.token) for a in facts.arrivals})
        deeds = ", ".join(f"{n} {name}" for name, n in self.deeds.most_common())
        return (
            f"seed {self.seed}: {len(facts.accepted)} accepted: {said}; {len(facts.arrivals)} arrivals, of which"
            f" {repeats} more than once; all had ended {self.drained_s:.1f} s after the last fault\n  deeds: {deeds}"
            f"\n  rules met: {', '.join(f'{name} ({n})' for name, n in facts.met.most_common() if n)}"
            f"\n  never met: {', '.join(sorted(name for name, n in facts.met.items() if not n)) or 'none'}"
        )

    def stories(self, most: int = 5) -> str:
        """All violations in a line each, and some, the first of each law among them, with what happened around them."""
        found = self.violations
        told = [f"{len(found)} violations with seed {self.seed}"] if found else []
        told += [self.history.line(one.at_us, f"{one.law}: {one.text[:200]}") for one in found[:LINES]]
        # Of each law the first: the others are often its consequences.
        firsts = {one.law: one for one in reversed(found)}
        first = sorted(firsts.values(), key=lambda one: one.at_us)
        chosen = [*first, *(one for one in found if one not in first)][:most]
        return "\n".join([*told, *(f"\n{story(self, violation)}" for violation in chosen)])


def story(verdict: Verdict, violation: Violation) -> str:
    """What happened around a violation: to the messages and the user it names, and to everything."""
    since_us, until_us = violation.at_us - BEFORE_US, violation.at_us + AFTER_US
    lines = {*_done(verdict, violation, since_us, until_us), *_received(verdict.facts, violation, since_us, until_us)}
    lines |= {*_logged(verdict.facts, violation, since_us, until_us)}
    told = [verdict.history.line(at_us, text) for at_us, text in sorted(lines)][-LINES:]
    head = verdict.history.line(violation.at_us, f"VIOLATION of {violation.law}: {violation.text}")
    return "\n".join([head, *(f"    {line}" for line in told)])


def _done(verdict: Verdict, violation: Violation, since_us: int, until_us: int) -> Iterator[tuple[int, str]]:
    """What was done at that time, what was wrong, and what was done to the messages at any time."""
    jobs = {f"n{number}" for number in violation.numbers}
    for event in verdict.history.events:
        named = not jobs.isdisjoint(event.text.replace(":", " ").split())
        if since_us <= event.at_us <= until_us or named:
            yield event.at_us, event.text
    for trouble in verdict.facts.troubles:
        if trouble.overlaps(since_us, until_us):
            yield trouble.since_us, f"since then: {trouble.kind} ({trouble.target})"


def _received(facts: Facts, violation: Violation, since_us: int, until_us: int) -> Iterator[tuple[int, str]]:
    """When the messages were accepted, and what the user's devices got."""
    for number in violation.numbers:
        one = facts.accepted[number]
        yield one.at_us, f"  accepted {one}; it ended as {facts.states.get(number)}"
    for arrival in facts.arrivals:
        one = facts.accepted[number_of(arrival)]
        near = one.user == violation.user and since_us <= arrival.at_us <= until_us
        if near or one.number in violation.numbers:
            yield arrival.at_us, f"    {arrival.platform} received {one}: {arrival.status} {arrival.reason[:40]}"


def _logged(facts: Facts, violation: Violation, since_us: int, until_us: int) -> Iterator[tuple[int, str]]:
    """What the workers logged of the messages, of the user, and of themselves."""
    jobs = {f"n{number}" for number in violation.numbers}
    for line in facts.log:
        near = since_us <= line["at_us"] <= until_us and ("job_id" not in line or line.get("user") == violation.user)
        if near or line.get("job_id") in jobs:
            more = {key: value for key, value in line.items() if key not in SAID_ELSEWHERE}
            yield line["at_us"], f"      {line['worker']}: {line['event']} {more or ''}"


SAID_ELSEWHERE: Final = {"timestamp", "at_us", "event", "worker", "level", "logger"}


def run(
    seed: int, seconds: float, *, leave_out: Collection[str] = (), echo: bool = False, partitions: int = 0
) -> Verdict:
    """One run. seconds: how long things go wrong, without start and end. leave_out: deeds not done.

    partitions: on a Redis Cluster, in so many slots; 0: on one Redis.
    """
    cluster = RedisCluster(unasked=True) if partitions else None
    leave_out = {*leave_out, *(OF_ONE if cluster is not None else OF_CLUSTER)}
    chance = random.Random(f"nemesis {seed}")
    history = History(echo=echo)
    fleet = chance.choice([*FLEETS, [LANES, *halves(partitions)]] if partitions > 1 else FLEETS)
    with (
        tempfile.TemporaryDirectory(prefix="push-throttle-nemesis-") as folder,
        Machines(Path(folder), history, list(fleet), cluster=cluster, partitions=max(1, partitions)) as machines,
    ):
        history.add(f"seed {seed}: {len(fleet)} workers")
        found: list[Violation] = []
        web = Web(machines.server.url, history, seed) if cluster is None else None
        with web or contextlib.nullcontext(), Traffic(machines, history, seed, PER_S) as traffic:
            rage = Rage(machines, history, chance, plan(chance, leave_out))
            found += rage.run(seconds)
        history.add("nothing goes wrong any more, and nothing more is accepted")
        drained_s = drain(machines, len(traffic.accepted), traffic)
        if traffic.error is not None:
            raise traffic.error
        found += at_rest(machines, history)
        facts, strange = gather(machines, history, traffic)
        found += strange
        if web is not None:
            found += web.violations()
            facts.met.update(web.met)
        found = [each for each in found if not broken_off(each, facts.accepted)]
        return Verdict(
            seed, sorted([*found, *judge(facts)], key=lambda v: v.at_us), facts, history, drained_s, rage.done
        )


def halves(partitions: int) -> list[tuple[str, ...]]:
    """Two workers, each for half of the partitions."""
    half = partitions // 2
    return [(*LANES, "--partitions", some) for some in (f"0-{half - 1}", f"{half}-{partitions - 1}")]


class Rage:
    """The time in which things go wrong. done: which deeds were done, and how often."""

    def __init__(self, machines: Machines, history: History, chance: random.Random, coming: Iterator[str]) -> None:
        self.done: Counter[str] = Counter()
        self._machines, self._history, self._chance, self._coming = machines, history, chance, coming
        self._deeds = Deeds(machines, history, chance)
        self._undo: list[tuple[float, int, Callable[[], Begun | None]]] = []
        self._numbers = itertools.count()

    def run(self, seconds: float) -> list[Violation]:
        """Let things go wrong for so long, and put all right again; returns what the audit found meanwhile."""
        found: list[Violation] = []
        begun = time.monotonic()
        next_deed, next_audit = begun + FIRST_S, begun + AUDIT_S
        while (now := time.monotonic()) < begun + seconds:
            self._put_right(now)
            if now >= next_deed:
                self._do(next(self._coming))
                next_deed = time.monotonic() + self._chance.expovariate(1 / EVERY_S)
            if now >= next_audit:
                found += check_audit(self._machines, self._history)
                next_audit = time.monotonic() + AUDIT_S
            found += unexpected_ends(self._machines)
            time.sleep(POLL_S)
        while self._undo:
            self._put_right(NEVER_S)
            time.sleep(POLL_S)
        return found

    def _do(self, name: str) -> None:
        self.done[name] += 1
        self._note(getattr(self._deeds, name)())

    def _note(self, begun: Begun | None) -> None:
        if begun is not None:
            heapq.heappush(self._undo, (time.monotonic() + begun.seconds, next(self._numbers), begun.undo))

    def _put_right(self, until: float) -> None:
        due = []
        while self._undo and self._undo[0][0] <= until:
            due.append(heapq.heappop(self._undo)[2])
        for undo in due:
            self._note(undo())


def check_audit(machines: Machines, history: History) -> list[Violation]:
    """The audit, while all goes on; a Redis that does not answer has nothing to say."""
    try:
        findings = [finding for at in machines.each(socket_timeout=5) for finding in audit(at.client)]
    except (RedisError, NotifierError):
        return []
    return [Violation("audit", history.add(f"the audit finds: {finding}"), finding) for finding in findings]


def unexpected_ends(machines: Machines) -> Iterator[Violation]:
    """Workers that ended by themselves."""
    for worker in machines.workers:
        if worker.died_us is None and worker.reap() and worker.ended_by is None:
            last = worker.log.read_text(encoding="utf-8", errors="replace")[-1500:]
            if DOWN.search(last):  # it ends where Redis is down when it starts; Procfiles and hosts start it again
                machines.history.add(f"{worker.name} ended: {last.splitlines()[-1]}")
                machines.start_worker(machines.place_of(worker))
                continue
            yield Violation("nothing breaks", worker.died_us or 0, f"{worker.name} ended by itself: {last}")
        elif worker.died_us is None and worker.ended_by == "SIGTERM":
            worker.reap()


def drain(machines: Machines, count: int, traffic: Traffic) -> float:
    """Wait until all has ended, or may not take longer; returns the seconds."""
    begun = time.monotonic()
    requeued = sum(len(one.requeued) for one in traffic.accepted)
    while time.monotonic() < begun + CALM_S:
        stats = _stats(machines)
        left = any(at.client.exists(*keys_of_work()) for at in machines.each())
        if sum(stats[word] for word in TERMINAL) >= count + requeued or not left:
            break
        time.sleep(0.1)
    return time.monotonic() - begun


def keys_of_work() -> list[str]:
    """Where work is, save in the users' backlogs."""
    of_lanes = [rq_key(name, lane) for name in ("queue", "scheduled", "wip") for lane in LANES]
    return [*of_lanes, redis_key("later"), redis_key("leases")]


def _stats(machines: Machines) -> Counter[str]:
    found: Counter[str] = Counter()
    for at in machines.each():
        found.update({key.decode(): int(value) for key, value in at.client.hgetall(redis_key("stats")).items()})
    return found


def at_rest(machines: Machines, history: History) -> list[Violation]:
    """What must be true when nothing goes wrong any more: the audit, no work left, and all follow the same rates."""
    found = list(unexpected_ends(machines))
    found += check_audit(machines, history)
    left = [key.decode(errors="replace") for at in machines.each() for key in work_left(at.client)]
    if left:
        found.append(Violation("nothing is left", history.add(f"left in Redis: {left}"), f"left: {left}"))
    with machines.clients() as partitions:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            _, all_of_them = followers(partitions)
            living = {worker.name for worker in machines.running}
            versions = {one.name: one.version for one in all_of_them if one.name in living}
            if len(set(versions.values())) == 1 and versions.keys() == living:
                return found
            time.sleep(0.2)
    found.append(Violation("rates are live", history.add("the workers disagree"), f"versions at the end: {versions}"))
    return found


def gather(machines: Machines, history: History, traffic: Traffic) -> tuple[Facts, list[Violation]]:
    """All that the run is judged by, and the rates that were taken up though nobody had written them."""
    arrivals: list[Arrival] = []
    for platform in machines.providers:
        # What is refused for its credentials has not been read.
        arrivals += [a for a in WireLog.read(machines.folder / f"{platform}.jsonl") if "n" in a.data]
    log = [{**line, "worker": worker.name} for worker in machines.workers for line in worker.lines()]
    with Notifier.of(machines.settings) as notifier:
        states = {}
        for one in traffic.accepted:
            status = notifier.status(one.job_id)
            states[one.number] = None if status is None else status.state
    rules, strange = machines.rules()
    facts = Facts(traffic.accepted, arrivals, rules, history.troubles, log, states, _stats(machines))
    return facts, [Violation("rates are live", at_us, text) for at_us, text in strange]


def main() -> int:
    """Run, print the history and what came of it; returns 1 where a law did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--leave-out", nargs="*", choices=list(WEIGHTS), default=[], metavar="DEED")
    parser.add_argument("--cluster", type=int, default=0, metavar="PARTITIONS", help="on a Redis Cluster")
    parser.add_argument("--quiet", action="store_true", help="no history")
    parser.add_argument("--stories", type=int, default=5, help="how many violations are told")
    options = parser.parse_args()
    if (parts := options.cluster) and RQ_VARIABLE not in os.environ:  # RQ reads it when it is imported
        os.environ[RQ_VARIABLE] = f"{{{tag_of(0, parts)}}}notifier:rq"
        os.execv(sys.executable, sys.orig_argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and everything that was started ends
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    left_out = set(options.leave_out)
    verdict = run(seed, options.seconds, leave_out=left_out, echo=not options.quiet, partitions=parts)
    print(f"\n{verdict.summary()}")  # noqa: T201 - what was asked for
    if verdict.violations:
        print(f"\n{verdict.stories(options.stories)}")  # noqa: T201
        print("\nThe laws did not hold.")  # noqa: T201
        return 1
    print("The laws held.")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
