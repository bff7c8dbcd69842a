"""The lines in this process alone: the twin of *enqueue*, *pull*, *admit*, *settle* and *cancel* in Redis.

What only RQ and idle workers look at is left out: registries, expected times, the alarm, `rq suspend`.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from notifier.limiter.lines import Admitted, DeadToken, Job, Named, Pulled, Settlement
from notifier.limiter.memory import MemoryLimiter
from notifier.limiter.memory_admit import Judge, Look
from notifier.limiter.memory_gates import Due, Gates, take_arrived
from notifier.limiter.memory_jobs import Entry, Kept
from notifier.limiter.memory_limits import Limits, targets_of
from notifier.limiter.memory_newcomers import Newcomers, first_time
from notifier.limiter.memory_overflow import Overflow
from notifier.limiter.memory_ranked import Ranked
from notifier.limiter.memory_routes import Routes
from notifier.overload import Refused
from notifier.policy import LANES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from notifier.limiter.routes import Change, Seen
    from notifier.policies import Policies

RANK: Final[Mapping[str, int]] = {lane: place for place, lane in enumerate(LANES, 1)}
SUSPECT: Final = 2  # crashes after which *begin* tells which one was to blame


class MemoryLines:
    """Lines, gates, leases and what waits for a time of its own; each verb is atomic among threads.

    A `limiter` that is given shares its sends, its clock and its lock. totals: how many were accepted,
    dispatched, and looked at in vain, and how many ended or came back under each word. feedback: the dead
    tokens, as (told at µs, job id, user, token).
    """

    def __init__(self, policies: Policies, limiter: MemoryLimiter | None = None) -> None:
        self.limiter = limiter or MemoryLimiter()
        self.totals: Counter[str] = Counter()
        self.feedback: deque[tuple[int, str, str, DeadToken]] = deque()
        self._seq = 0
        self._jobs: dict[str, Entry] = {}
        self._gates = Gates(policies, self.limiter, self._jobs.__getitem__)
        self._ended = Kept()  # how each ended
        self._dedupe = Kept()  # the first job's id
        self._queues: dict[str, deque[str]] = {}
        self._later = Ranked()
        self._leases = Ranked()
        self._routes = Routes()
        self._limits = Limits()
        self._newcomers = Newcomers()
        self._overflow = Overflow(self._jobs, self._queues, self._newcomers)

    @property
    def policies(self) -> Policies:
        """The rules; they may be replaced at any time: all gates open once, and what waits follows the new ones."""
        return self._gates.policies

    @policies.setter
    def policies(self, policies: Policies) -> None:
        with self.limiter.lock:
            self._gates.policies = policies
            self._gates.open_all(self.limiter.clock())

    def state(self, job_id: str) -> str | None:
        """Where a job is: 'queue', 'line', 'later', 'leased', or how it ended; None where nothing is known."""
        with self.limiter.lock:
            entry = self._jobs.get(job_id)
            return self._ended.get(job_id) if entry is None else entry.state

    def enqueue(
        self, jobs: Iterable[Job], *, dedupe_for_us: int = 0, max_waiting: int | None = None, keep_failed_us: int = 0
    ) -> list[str | Refused]:
        """Accept jobs, each once; returns each one's id, or that of the earlier one with its dedupe key, or why not."""
        with self.limiter.lock:
            now = self.limiter.clock()
            self._forget(now)
            return [self._accept(now, job, dedupe_for_us, max_waiting, now + keep_failed_us) for job in jobs]

    def pull(
        self, *, most: int, lease_us: int, lanes: Sequence[str], worker: str = "", keep_failed_us: int = 0
    ) -> Pulled:
        """Line up what has arrived or fallen due, and name the users to look at; `most` of each."""
        with self.limiter.lock:
            now = self.limiter.clock()
            rank = {lane: place for place, lane in enumerate(lanes, 1)}
            due = Due(self._gates, lanes, now + lease_us)
            # The dead first: they were at the head of their lines.
            moved = self._recover(now, -(-most // 2))
            moved += self._fall_due(now, -(-(most - len(moved)) // 2))
            arrived = take_arrived([self._queues.get(lane, deque()) for lane in lanes], most - len(moved))
            moved += [self._jobs[job_id] for job_id in arrived if job_id in self._jobs]
            stock: list[tuple[str, str]] = []
            for entry in moved:
                if entry.order is None:
                    self._join(now, entry, keep_failed_us)
                self._place(now, entry, rank, due, stock)
            for member in self._routes.let_go(now, most, worker):
                self._look_at(member, now, rank, due)
            due.name_due(now, most)
            places = (self._later, self._leases, *map(self._gates.of_lane, lanes))
            nexts = [first[0] for first in map(Ranked.first, places) if first is not None]
            nexts += self._routes.nexts(now, worker)
            users, shut = due.users(most), self._routes.shut()
            return Pulled(now, min(nexts, default=None), users, stock, len(arrived), suspended=False, shut=shut)

    def admit(
        self,
        users: Iterable[Named],
        *,
        most: int,
        lease_us: int,
        lanes: Sequence[str],
        worker: str = "",
        targets: Mapping[str, str] | None = None,
    ) -> Admitted:
        """Take the heads that the rules admit of the lines of these users, `most` in all.

        targets: of jobs that came without, by job id.
        """
        with self.limiter.lock:
            now = self.limiter.clock()
            for job_id, text in (targets or {}).items():
                if job_id in self._jobs:
                    self._jobs[job_id].targets = text
            rank = {lane: place for place, lane in enumerate(lanes, 1)}
            judge = Judge(self._gates.policies, self._routes, self._limits, now, worker)
            look = Look(self._gates, self._jobs, self._lease, self._later, judge, now, most, lease_us, rank)
            for user, lane, due_us in users:
                if look.room > 0:
                    look.at(user, lane)
                else:  # *pull* pushed the gate ahead: it is due still, and the user keeps the place that it gave
                    self._gates.of_lane(lane).put(user, due_us)
            self.totals["dispatched"] += len(look.leased)
            self.totals["looked"] += look.idle
            return Admitted(now, look.idle, look.waiting, look.leased, look.unread)

    def settle(
        self, settlements: Sequence[Settlement], *, keep_failed_us: int, keep_delivered_us: int, keep_feedback_us: int
    ) -> list[bool]:
        """Close permits; returns for each whether it was still the caller's to settle."""
        with self.limiter.lock:
            now = self.limiter.clock()
            mine = [self._settle(now, s, keep_failed_us, keep_delivered_us) for s in settlements]
            for user in {s.user: None for s, settled in zip(settlements, mine, strict=True) if settled}:
                self._gates.settled(user, now)
            while self.feedback and self.feedback[0][0] < now - keep_feedback_us:
                self.feedback.popleft()
            self._forget(now)
            return mine

    def cancel(self, job_id: str, *, keep_failed_us: int) -> str:
        """Cancel one job; returns 'cancelled', 'sending', 'ended' or 'unknown'."""
        with self.limiter.lock:
            entry = self._jobs.get(job_id)
            if entry is None:
                ended = self._ended.get(job_id)
                return ended if ended == "cancelled" else "unknown" if ended is None else "ended"
            if entry.permit:
                return "sending"
            # A queued one stays in its queue, which can be long: *pull* passes over it.
            now = self.limiter.clock()
            self._later.discard(job_id)
            self._end_unsent(entry, "cancelled", now + keep_failed_us, now)
            self._forget(now)
            return "cancelled"

    def circuit(self, worker: str, route: str, seen: Seen, *, first_us: int = 0, most_us: int = 0) -> Change:
        """Tell what a worker has seen of a route; see `routes.circuit`."""
        with self.limiter.lock:
            return self._routes.see(self.limiter.clock(), worker, route, seen, first_us, most_us)

    def reset(self, user: str, *categories: str) -> int:
        """As `Limiter.reset`; what waits in the user's lines is looked at again at once."""
        with self.limiter.lock:
            waiting = self._gates.look_again(user, self.limiter.clock())
            return self.limiter.reset(user, *categories, *waiting)

    def _accept(self, now: int, job: Job, dedupe_for_us: int, in_all: int | None, kept_until: int) -> str | Refused:
        if earlier := self._dedupe.get(job.dedupe):
            return earlier
        again = self.state(job.id) is not None
        at = job.send_at_us if job.send_at_us is not None and job.send_at_us > now else None
        room = None if again else self._overflow.make_room(job, in_all, later=at is not None)
        if isinstance(room, Refused):
            self.totals["refused"] += 1
            return room
        if job.dedupe:
            self._dedupe.put(job.dedupe, job.id, now + dedupe_for_us)
        if again:
            return job.id
        entry = self._jobs[job.id] = Entry(job, targets=job.targets)
        if job.expires_in_us is not None:
            entry.deadline_us = (now if at is None else at) + job.expires_in_us
        self.totals["accepted"] += 1
        if room is not None and job.overflow == "collapse":
            self._take_place(now, entry, room, kept_until)
            return job.id
        if room is not None:
            self._end_unsent(room, "dropped", kept_until, now)
        if job.max_waiting is not None:
            entry.arriving = json.loads(job.meta)["user"]
        if at is None:
            self._queues.setdefault(job.lane, deque()).append(job.id)
        else:
            entry.state = "later"
            self._later.put(job.id, at)
        return job.id

    def _recover(self, now: int, most: int) -> list[Entry]:
        lapsed = [self._jobs[job_id] for job_id in self._leases.upto(now, most)]
        for entry in lapsed:
            self._leases.discard(entry.job.id)
            entry.permit = ""
            # Nobody begins a suspect alone here, so nothing that is held along with it is ever blamed.
            entry.crashes = min(entry.crashes + 1, SUSPECT)
        return lapsed

    def _fall_due(self, now: int, most: int) -> list[Entry]:
        due = [self._jobs[job_id] for job_id in self._later.upto(now, most)]
        for entry in due:
            self._later.discard(entry.job.id)
        return due

    def _line_up(self, now: int, entry: Entry, rank: Mapping[str, int]) -> str | None:
        """As `Gates.line_up`; None for a job that is no notification of ours."""
        if entry.order is None:
            return None
        entry.state = "line"
        fresh = self._gates.line_up(entry, entry.order, rank)
        if fresh:
            return fresh
        # The user may be parked for what the head before it needs, or wait by the clock of another zone.
        if entry.unlike or self._routes.holds or self.policies.goes_by_clock:
            if self._gates.is_head(entry.user, entry.category, entry.job.id):
                return self._gates.lane_of(entry.user, entry.category)
        elif entry.deadline_us is not None:
            self._gates.expires(entry, max(now, entry.deadline_us))
        full = entry.gather_us == 0 and entry.collapse_id is not None
        return self._gates.lane_of(entry.user, entry.category) if full else ""

    def _join(self, now: int, entry: Entry, keep_failed_us: int) -> None:
        """A job that comes for the first time may take the place of one that waits."""
        if not first_time(entry, now, self._seq + 1):
            return
        self._seq += 1
        old = self._newcomers.join(entry, self.policies.category(entry.category))
        if old is not None:
            self._end_unsent(old, "superseded", now + keep_failed_us)

    def _take_place(self, now: int, entry: Entry, old: Entry, kept_until: int) -> None:
        """Stand at once where `old` stands."""
        self._seq += 1
        first_time(entry, now, self._seq)
        self._newcomers.replace(old, entry)
        self._end_unsent(old, "superseded", kept_until)
        if lane := self._line_up(now, entry, RANK):
            self._gates.of_lane(lane).lower(entry.user, now)

    def _end_unsent(self, old: Entry, word: str, kept_until: int, look_us: int | None = None) -> None:
        """End what no worker has. look_us: when a user whose head it was is looked at."""
        if old.state == "line":
            self._gates.take_out(old.user, old.category, old.job.id, look_us)
        self._newcomers.forget(old)
        self._end(old.job.id, word, kept_until)
        self.totals[word] += 1

    def _place(
        self, now: int, entry: Entry, rank: Mapping[str, int], due: Due, stock: list[tuple[str, str]] | None = None
    ) -> None:
        lane = self._line_up(now, entry, rank)
        if lane is None:
            assert stock is not None  # what was lined up before is a notification
            self._lease(entry, due.until_us)
            stock.append((entry.job.id, entry.permit))
        elif lane in rank:
            due.name(entry.user, lane, now)
        elif lane:
            self._gates.of_lane(lane).lower(entry.user, now)

    def _look_at(self, member: str, now: int, rank: Mapping[str, int], due: Due) -> None:
        """Look at what was parked: a user in a lane, or the rest of a notification, which goes back to its place."""
        lane, _, user = member[1:].partition(" ")
        if member[0] == "j":
            if (job_id := member[1:]) in self._later:
                self._later.discard(job_id)
                self._place(now, self._jobs[job_id], rank, due)
        elif self._gates.stands_in(user, lane):
            if lane in rank:
                due.name(user, lane, now, waited=True)
            else:
                self._gates.of_lane(lane).lower(user, now)

    def _lease(self, entry: Entry, until_us: int) -> None:
        self._seq += 1
        entry.permit = str(self._seq)
        entry.state = "leased"
        self._newcomers.forget(entry)
        self._leases.put(entry.job.id, until_us)

    def _settle(self, now: int, s: Settlement, keep_failed_us: int, keep_delivered_us: int) -> bool:
        entry = self._jobs.get(s.job_id)
        if entry is None or not entry.permit or entry.permit != s.permit:
            return False
        lease_ends = self._leases.score(s.job_id)
        self._leases.discard(s.job_id)
        self.limiter.close(s.user, s.category, s.permit, now if s.reached else None)
        if entry.counted:
            targets = targets_of(entry, self.policies.category(s.category))
            self._limits.close(self.policies, s.permit, targets, now if s.reached else None, max(0, lease_ends - now))
        entry.permit = ""
        if s.answered:
            entry.answered = s.answered.encode()
        if s.state in ("delivered", "failed", "dropped", "held"):
            kept = {"failed": keep_failed_us, "dropped": keep_failed_us, "delivered": keep_delivered_us}
            # 'held' goes its way in RQ, which has no twin here.
            self._end(s.job_id, s.word or s.state, now + kept.get(s.state, 0))
        else:
            self._go_back(now, entry, s)
        if s.word:
            self.totals[s.word] += 1
        self.feedback += [(now, s.job_id, s.user, dead) for dead in s.gone]
        return True

    def _go_back(self, now: int, entry: Entry, s: Settlement) -> None:
        if s.state == "queue":
            entry.state = "queue"
            self._queues.setdefault(entry.job.lane, deque()).appendleft(s.job_id)
        elif s.state == "line":
            if lane := self._line_up(now, entry, {}):
                self._gates.of_lane(lane).lower(entry.user, now)
        else:
            entry.state = "later"
            entry.attempts += s.state == "later"
            self._later.put(s.job_id, now + int(s.detail))

    def _end(self, job_id: str, word: str, until_us: int) -> None:
        del self._jobs[job_id]
        self._ended.put(job_id, word, until_us)

    def _forget(self, now: int) -> None:
        """Drop what was kept long enough."""
        for kept in (self._limits, self._ended, self._dedupe):
            kept.forget(now)
