"""One *admit* of `MemoryLines`: looks at users whose gates are due, and takes the heads that the rules admit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from notifier.limiter.lines import Leased, Unread, Waiting
from notifier.limiter.memory_gates import ELSEWHERE, Gates, Line
from notifier.limiter.memory_limits import Limits, Target, targets_of
from notifier.limiter.memory_ranked import Ranked
from notifier.limiter.memory_routes import FAR_US, Routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from notifier.limiter.memory_jobs import Entry
    from notifier.policies import Policies
    from notifier.policy import Category

MOST_HEADS: Final = 25  # of one user at one look: what is more stays due
MOST_UNREAD: Final = 25


@dataclass(frozen=True, slots=True)
class Go:
    """The head goes to these, and by these routes it does not go now."""

    targets: tuple[Target, ...] = ()
    shut: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Stay:
    """The head stays: until its devices may be sent to, for what it is parked for, or until it was read."""

    until_us: int = 0
    parked: tuple[str, ...] = ()
    unread: bool = False


@dataclass(slots=True)
class Judge:
    """What the providers let go, in one *admit*."""

    policies: Policies
    routes: Routes
    limits: Limits
    now: int
    worker: str

    def head(self, entry: Entry, category: Category) -> Go | Stay:
        """Whether the head of a line goes now."""
        if self.policies.limits.is_empty and not self.routes.holds:
            return Go()
        if not entry.targets:
            return Stay(unread=True)
        targets = targets_of(entry, category)
        several = len(targets) > 1 and not entry.answered
        shut = [target.route for target in targets if self._is_shut(target, several=several)]
        going = tuple(target for target in targets if target.route not in shut)
        if shut and not going:
            return Stay(parked=tuple(shut))
        nexts = [self.limits.device_next(self.policies, entry.user, category, target) for target in going]
        if max(nexts, default=0) > self.now:
            return Stay(until_us=max(nexts))
        for route, cost in Counter(target.route for target in going).items():
            if (frees := self.limits.project_frees(self.policies, route, cost, self.now)) is not None:
                self.routes.fill(f"{route}|full", *frees)
                return Stay(parked=(f"{route}|full",))
        return Go(going, frozenset(shut))

    def spend(self, entry: Entry, category: Category, targets: Iterable[Target], until_us: int) -> None:
        """Count what goes, with its devices and projects. A probe is one."""
        self.limits.count(self.policies, category, entry, targets, until_us, self.now)
        for target in targets:
            hold = self.routes.holds.get(target.route)
            if hold is not None and hold.state == "open":
                hold.again(self.now + hold.interval_us, probe=False)
                hold.prober = self.worker

    def _is_shut(self, target: Target, *, several: bool) -> bool:
        hold = self.routes.holds.get(target.route)
        if hold is None or hold.state == "full":
            return False
        return several if hold.state == "closing" else not hold.probe


@dataclass(slots=True)
class Look:
    """The arguments of one *admit*, and what it has found so far.

    lease: gives a job its lease and permit. idle: how many users had nothing that might go.
    """

    gates: Gates
    jobs: Mapping[str, Entry]
    lease: Callable[[Entry, int], None]
    later: Ranked
    judge: Judge
    now: int
    room: int
    lease_us: int
    rank: Mapping[str, int]
    idle: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    leased: list[Leased] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    def at(self, user: str, due_lane: str) -> None:
        """Take what may go of the user's lines, and leave the gates at the moment the next may."""
        lines, several = self.gates.ordered(user, self.rank)
        lanes = {due_lane, *(line.lane for line in lines)}
        asked = len(self.unread)
        lines, sends = self._take(user, lines, several=several)
        for line in lines:
            head = line.ids.first()
            if line.unread:
                line.at_us = self.now + self.lease_us
            elif line.at_us > self.now and not line.parked and self.gates.is_to_drop(line):
                line.at_us = self.now  # there was no room for it: it is due still
            elif line.at_us > self.now and not line.parked and head is not None:
                self.waiting.append(Waiting(head[1], user, line.category.name, line.at_us - self.now))
        self.gates.looked(user, lines, self.now, lanes)
        self._park(user, lanes, lines)
        self.idle += bool(lines) and not sends and len(self.unread) == asked

    def _take(self, user: str, lines: list[Line], *, several: bool) -> tuple[list[Line], int]:
        """Take heads until none may go; returns the lines that are left, and how many permits were spent."""
        self.gates.time(user, lines, self.now)
        sends = i = 0
        full = len(self.leased) + MOST_HEADS
        while i < len(lines) and self.room > 0 and len(self.leased) < full:
            line = lines[i]
            elsewhere = self.rank.get(line.lane, ELSEWHERE) == ELSEWHERE
            stays = elsewhere or line.parked or line.unread
            if stays or (line.at_us > self.now and not self._has_expired(line) and not self.gates.is_to_drop(line)):
                i += 1
                continue
            spent = self._try(user, line)
            if not line.ids:
                del lines[i]
            if spent:
                sends, i = sends + 1, 0
                if several:
                    self.gates.turn(user)
                    lines, several = self.gates.ordered(user, self.rank)
            if spent or self.gates.policies.goes_by_clock:  # the next head may go by another clock
                self.gates.time(user, lines, self.now)
        return lines, sends

    def _has_expired(self, line: Line) -> bool:
        deadline = self.gates.deadline(line)
        return deadline is not None and deadline <= self.now

    def _try(self, user: str, line: Line) -> bool:
        """What becomes of the head of a line. Returns whether a permit was spent."""
        if self._has_expired(line):
            self._take_head(user, line, None)
            return False
        head = line.ids.first()
        assert head is not None
        entry = self.jobs[head[1]]
        if line.at_us > self.now:
            self._take_head(user, line, None, dropped=True)
            return False
        match self.judge.head(entry, line.category):
            case Go() as go:
                self._take_head(user, line, go)
                return True
            case Stay(until_us, parked, unread):
                if parked and entry.answered:
                    self._step_aside(user, line, entry, parked)
                elif parked:
                    line.parked = parked
                elif unread:
                    line.unread = True
                    self._ask(user, line)
                else:
                    line.at_us = line.least_us = until_us
        return False

    def _take_head(self, user: str, line: Line, go: Go | None, *, dropped: bool = False) -> None:
        """Lease the head of a line; nothing is spent on what has expired or is to be dropped."""
        entry = self.jobs[self.gates.take_head(user, line)]
        until = self.now + self.lease_us
        self.lease(entry, until)
        left = None if entry.deadline_us is None else entry.deadline_us - self.now
        entry.counted = go is not None
        self.room -= 1
        self.leased.append(entry.leased(left, go.shut if go is not None else frozenset(), dropped=dropped))
        if go is not None:
            self.gates.record(user, line, entry.permit, until, self.now)
            self.judge.spend(entry, line.category, go.targets, until)

    def _step_aside(self, user: str, line: Line, entry: Entry, names: Iterable[str]) -> None:
        """The rest of what other routes took leaves its line, until its route is up or it expires."""
        self.gates.take_head(user, line)
        entry.state = "later"
        self.later.put(entry.job.id, FAR_US if entry.deadline_us is None else entry.deadline_us)
        for name in names:
            self.judge.routes.park(name, f"j{entry.job.id}", self.now)

    def _ask(self, user: str, line: Line) -> None:
        for job_id in line.ids.upto(FAR_US, MOST_UNREAD):
            if not self.jobs[job_id].targets:
                self.unread.append(Unread(job_id, user, self.jobs[job_id].job.data))

    def _park(self, user: str, lanes: Iterable[str], lines: Iterable[Line]) -> None:
        """The user stands, in each of these lanes, where the heads of the parked lines wait, and nowhere else."""
        for name in self.judge.routes.holds:
            waits = {line.lane for line in lines if name in line.parked}
            for lane in lanes:
                if lane in waits:
                    self.judge.routes.park(name, f"u{lane} {user}", self.now)
                else:
                    self.judge.routes.parked(name).discard(f"u{lane} {user}")
