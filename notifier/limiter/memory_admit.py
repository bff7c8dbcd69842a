"""One *admit* of `MemoryLines`: looks at users whose gates are due, and takes the heads that the rules admit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from notifier.limiter.lines import Leased, Waiting
from notifier.limiter.memory_gates import ELSEWHERE, Gates, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from notifier.limiter.memory_jobs import Entry


MOST_HEADS: Final = 25  # of one user at one look: what is more stays due


@dataclass(slots=True)
class Look:
    """The arguments of one *admit*, and what it has found so far.

    lease: gives a job its lease and permit. idle: how many users had nothing that might go.
    """

    gates: Gates
    jobs: Mapping[str, Entry]
    lease: Callable[[Entry, int], None]
    now: int
    room: int
    lease_us: int
    rank: Mapping[str, int]
    idle: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    leased: list[Leased] = field(default_factory=list)

    def at(self, user: str, due_lane: str) -> None:
        """Take what may go of the user's lines, and leave the gates at the moment the next may."""
        lines, several = self.gates.ordered(user, self.rank)
        lanes = {due_lane, *(line.lane for line in lines)}
        lines, sends = self._take(user, lines, several=several)
        for line in lines:
            head = line.ids.first()
            if line.at_us > self.now and head is not None:
                self.waiting.append(Waiting(head[1], user, line.category.name, line.at_us - self.now))
        self.gates.looked(user, lines, self.now, lanes)
        self.idle += bool(lines) and not sends

    def _take(self, user: str, lines: list[Line], *, several: bool) -> tuple[list[Line], int]:
        """Take heads until none may go; returns the lines that are left, and how many permits were spent."""
        self.gates.time(user, lines)
        sends = i = 0
        full = len(self.leased) + MOST_HEADS
        while i < len(lines) and self.room > 0 and len(self.leased) < full:
            line = lines[i]
            elsewhere = self.rank.get(line.lane, ELSEWHERE) == ELSEWHERE
            if elsewhere or (line.at_us > self.now and not self._has_expired(line)):
                i += 1
                continue
            spent = self._take_head(user, line)
            if not line.ids:
                del lines[i]
            if spent:
                sends, i = sends + 1, 0
                if several:
                    self.gates.turn(user)
                    lines, several = self.gates.ordered(user, self.rank)
                self.gates.time(user, lines)
        return lines, sends

    def _has_expired(self, line: Line) -> bool:
        deadline = self.gates.deadline(line)
        return deadline is not None and deadline <= self.now

    def _take_head(self, user: str, line: Line) -> bool:
        """Lease the head of a line. Returns whether a permit was spent: none is on what has expired."""
        entry = self.jobs[self.gates.take_head(user, line)]
        until = self.now + self.lease_us
        self.lease(entry, until)
        left = None if entry.deadline_us is None else entry.deadline_us - self.now
        self.room -= 1
        self.leased.append(entry.leased(left))
        if left is not None and left <= 0:
            return False
        self.gates.record(user, line, entry.permit, until, self.now)
        return True
