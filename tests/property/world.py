"""One system in Redis, its twin in memory and the plain model, driven side by side by the test's clock."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clock_model import ClockModel
from model import Send, Sends

from notifier.limiter import MemoryLimiter, MemoryLines, lines
from notifier.limiter.lines import DeadToken, Job, Leased, Named, Pulled, Settlement, State, Waiting
from notifier.limiter.rule_table import RuleTable
from notifier.limiter.scripts import Call, run
from notifier.overload import Refused
from notifier.zones import zone_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from notifier.policies import Policies
    from notifier.policy import Category

START = 1_700_000_000_000_000
S = 1_000_000
LEASE = 30 * S
KEEP = 7 * 86_400 * S
LANES = ("urgent", "default", "bulk")
ZONES = ("Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham")


@dataclass
class Told:
    """What the producer knows of a job, and what was seen of it since."""

    number: int
    user: str
    category: str
    lane: str
    high: bool
    at_once: bool
    zone: str
    since_us: int = 0
    dispatched: int = 0
    collapse_id: str | None = None
    superseded: bool = False
    over: Told | None = None

    def all(self) -> list[Told]:
        """It, and those that were superseded by it, by one of those, and so on."""
        return [self, *self.over.all()] if self.over else [self]

    @property
    def place(self) -> tuple[bool, int]:
        """Where it stands in its line: in the place of the first of all those."""
        return min((not told.high, told.number) for told in self.all())


@dataclass(slots=True)
class Flight:
    """A job in a worker's hands: its permit stands in the model's sends, unless it had expired.

    twin: what the twin leased, the same but for the name of the permit.
    """

    leased: Leased
    twin: Leased
    since_us: int
    until_us: int
    lost: bool = False


@dataclass
class World:
    """The three, and what every step must leave true."""

    redis: Redis
    policies: Policies
    now: int = START
    told: dict[str, Told] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    receipts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)  # of the users that name one
    max_waiting: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.redis.flushdb()
        self.memory = MemoryLines(self.policies, MemoryLimiter(lambda: self.now))
        self.rules = RuleTable(self.policies)
        self.sends: dict[tuple[str, str], Sends] = {}
        self.tell_zones()

    def tell_zones(self) -> None:
        """What Redis knows of zones, where a rule goes by the clock."""
        if self.policies.goes_by_clock:
            tables = {name: zone_at(name, self.now).encode() for name in ZONES}
            self.redis.hset("notifier:zones", mapping=tables)

    def _both(self, call: Call[Any], of_memory: Callable[[], Any]) -> Any:
        of_redis = run(self.redis, call)
        assert of_redis == of_memory()
        return of_redis

    def enqueue(
        self,
        user: str,
        category: str,
        lane: str,
        *,
        high: bool = False,
        expires_in_us: int | None = None,
        send_in_us: int = 0,
        targets: str = "",
        plain: bool = False,
        collapse_id: str | None = None,
    ) -> str:
        """Accept one job; returns its id. plain: by a producer that does not write its targets down."""
        number, zone = len(self.told) + self.seen["refused"], self.zones.get(user)
        meta = {"user": user, "category": category, **({"priority": "high"} if high else {})}
        meta |= {"collapse_id": collapse_id} if collapse_id else {}
        meta |= {"zone": zone} if zone else {}
        send_at = self.now + send_in_us if send_in_us else None
        job = Job(f"job{number:04}", lane, b"data", json.dumps(meta).encode(), expires_in_us, send_at)
        job = replace(job, targets="" if plain else targets)
        self.targets[job.id] = targets
        in_all = of_user = None
        if self.max_waiting is not None:
            in_all, of_user = self.max_waiting
            job = replace(job, overflow=self._category(category).overflow, max_waiting=of_user)
        call = lines.enqueue(
            [job],
            dedupe_for_us=S,
            timeout_s=60,
            stamp="",
            max_waiting=in_all,
            keep_failed_us=KEEP,
            clock=str(self.now),
        )
        lined = self._lines()
        (answer,) = self._both(call, lambda: self.memory.enqueue([job], max_waiting=in_all, keep_failed_us=KEEP))
        if isinstance(answer, Refused):
            self.seen["refused"] += 1
            return ""
        self._note_dropped(lined)
        zone = zone or self.policies.zone
        self.told[job.id] = Told(number, user, category, lane, high, not send_in_us, zone, collapse_id=collapse_id)
        self._note_superseded()
        return job.id

    def pull(self, most: int = 50, worker: str = "w") -> Pulled:
        """What has fallen due; leases that have ended are over for their workers."""
        call = lines.pull(
            most=most,
            lease_us=LEASE,
            on_watch=False,
            lanes=LANES,
            worker=worker,
            on_join=self.rules.on_join,
            keep_failed_us=KEEP,
            clock=str(self.now),
        )
        pulled: Pulled = self._both(
            call,
            lambda: self.memory.pull(most=most, lease_us=LEASE, lanes=LANES, worker=worker, keep_failed_us=KEEP),
        )
        self._note_superseded()
        self.seen["pulls"] += 1
        if self.policies.goes_by_clock:
            for told in (self.told[job_id] for line in self._lines().values() for job_id in line):
                told.since_us = told.since_us or self.now
        recovered = [flight for flight in self.flights if self.memory.state(flight.leased.job_id) != "leased"]
        for flight in recovered:
            if not flight.lost:
                flight.lost = True
                self.seen["lapsed"] += 1
        return pulled

    def _note_superseded(self) -> None:
        """Each that was superseded had never left its line, and another of its collapse id has its place."""
        for job_id, old in self.told.items():
            if old.superseded or self.memory.state(job_id) != "superseded":
                continue
            old.superseded = True
            self.ended["superseded"] += 1
            assert not old.dispatched
            new = self.told[_text(self.redis.hget(f"rq:job:{job_id}", "push_by"))]
            assert (new.user, new.category) == (old.user, old.category)
            assert self._category(old.category).counts
            if not self._category(old.category).digest:
                assert old.collapse_id
                assert new.collapse_id == old.collapse_id
            in_order = new.at_once and old.at_once and new.lane == old.lane
            assert new.number > old.number or not in_order
            assert new.over is None
            new.over = old
            new.at_once = in_order

    def _note_dropped(self, lined: dict[tuple[str, str], list[str]]) -> None:
        """Who was dropped was the oldest of its line, of those that no worker had tried."""
        for (_, category), ids in lined.items():
            for job_id in ids:
                if self.memory.state(job_id) == "dropped":
                    self.ended["dropped"] += 1
                    assert self._category(category).overflow == "drop_oldest"
                    assert self.redis.hget(f"rq:job:{job_id}", "push_reason") == b"overflow"
                    before = [self.told[other] for other in ids[: ids.index(job_id)]]
                    assert all(other.dispatched or other.high for other in before)

    def round(self, most: int = 50, room: int = 50) -> int:
        """Pull and admit; returns how many jobs were taken."""
        pulled = self.pull(most)
        return self.admit(pulled.users, room) if pulled.users else 0

    def admit(self, users: list[Named], room: int = 50, read: dict[str, str] | None = None) -> int:
        """Take what may go; each head taken, each left, and each one's place is as the model has it."""
        waiting = self._lines()
        call = lines.admit(
            users, self.rules, most=room, lease_us=LEASE, worker="w", lanes=LANES, targets=read, clock=str(self.now)
        )
        admitted = run(self.redis, call)
        twin = self.memory.admit(users, most=room, lease_us=LEASE, lanes=LANES, worker="w", targets=read)
        for leased, of_twin in zip(admitted.leased, twin.leased, strict=True):
            assert leased == replace(of_twin, permit=leased.permit)
            self._dispatched(Flight(leased, of_twin, self.now, self.now + LEASE), waiting)
        assert admitted == replace(twin, leased=admitted.leased)
        for held in admitted.waiting:
            self.check_wait(held)
        self.seen["looks"] += admitted.looks
        taken = len(admitted.leased)
        if admitted.unread:
            read = {unread.job_id: self.targets[unread.job_id] for unread in admitted.unread}
            asked = {unread.user for unread in admitted.unread}
            taken += self.admit([named for named in users if named[0] in asked], room - taken, read)
        return taken

    def check_wait(self, held: Waiting) -> None:
        """Law 3: a head is told exactly how long the rules hold it back, never longer; or while a digest gathers."""
        least = self.earliest(held.user, held.category, held.job_id) - self.now
        digest = self._category(held.category).digest
        assert held.time_left_us >= least
        assert held.time_left_us <= max(least, digest.within_us if digest else 0)

    def _dispatched(self, flight: Flight, waiting: dict[tuple[str, str], list[str]]) -> None:
        leased = flight.leased
        self.flights.append(flight)
        self.seen["dispatches"] += 1
        told = self.told[leased.job_id]
        line = waiting[leased.user, leased.category]
        line.remove(leased.job_id)
        if not told.dispatched and told.at_once:
            # Law 4: nothing that came before it still waits: the urgent first, then in the order of acceptance.
            place = told.place
            others = [self.told[job_id] for job_id in line]
            assert not [
                other
                for other in others
                if other.place < place and not other.dispatched and other.at_once and other.lane == told.lane
            ]
        told.dispatched += 1
        assert leased.count == len(told.all())
        if leased.left_us is not None and leased.left_us <= 0:
            return
        if leased.dropped:
            assert self._category(leased.category).when_blocked == "drop"
            assert told.dispatched == 1 or flight.twin.crashes == 0
            assert self.earliest(leased.user, leased.category, leased.job_id) > self.now
            return
        # Law 1 (and 5): it goes only when what was really sent, and nothing else, lets it.
        assert self.earliest(leased.user, leased.category, leased.job_id) <= self.now
        for sends in self._scopes(leased.user, leased.category):
            sends.add(Send(leased.permit, flight.until_us), self.now)

    def settle(
        self,
        flight: Flight,
        state: State,
        *,
        reached: bool,
        word: str = "",
        wait_us: int | str = 0,
        gone: tuple[DeadToken, ...] = (),
        answered: str = "",
    ) -> bool:
        """Settle one flight; a lost one must change nothing."""
        self.flights.remove(flight)
        leased = flight.leased
        settlement = Settlement(
            leased.job_id,
            leased.permit,
            leased.user,
            leased.category,
            reached,
            state,
            word,
            wait_us,
            answered,
            gone,
        )
        before = self.dump() if flight.lost else None
        call = lines.settle(
            [settlement],
            self.rules,
            worker="w",
            keep_failed_us=KEEP,
            keep_delivered_us=KEEP,
            keep_feedback_us=KEEP,
            clock=str(self.now),
        )
        twin = replace(settlement, permit=flight.twin.permit)
        (mine,) = self._both(
            call, lambda: self.memory.settle([twin], keep_failed_us=KEEP, keep_delivered_us=KEEP, keep_feedback_us=KEEP)
        )
        assert mine is not flight.lost
        if flight.lost:
            assert self.dump() == before
            return False
        if word:
            self.ended[word] += 1
        for sends in self._scopes(leased.user, leased.category):
            if reached:
                sends.move(leased.permit, self.now)
            else:
                sends.take_back(leased.permit)
        return True

    def cancel(self, job_id: str) -> str:
        """Cancel one job."""
        before = self.memory.state(job_id)
        call = lines.cancel(job_id, keep_failed_us=KEEP, clock=str(self.now))
        answer: str = self._both(call, lambda: self.memory.cancel(job_id, keep_failed_us=KEEP))
        self.ended["cancelled"] += answer == "cancelled" != before
        return answer

    def received(self, flight: Flight, at_us: int) -> None:
        """The provider took it at this moment."""
        self.receipts.setdefault(flight.leased.user, []).append((at_us, flight.leased.category))

    def earliest(self, user: str, category: str, job_id: str) -> int:
        """The first µs at which the rules admit a send, by brute force; 0 for a category that bypasses them."""
        if self._category(category).bypass:
            return 0
        scopes = self._scopes(user, category)
        at = max(sends.earliest()[0] for sends in scopes)
        if not any(sends.policy.goes_by_clock for sends in scopes):
            return at
        told, ignores = self.told[job_id], self._category(category).ignores_quiet
        quiet = [hours for hours in (sends.policy.quiet for sends in scopes[ignores:]) if hours is not None]
        model = ClockModel(told.zone, told.since_us, quiet, scopes, self.policies.lead_us)
        return model.earliest(max(at, self.now))

    def _scopes(self, user: str, category: str) -> list[Sends]:
        of_user = self.sends.setdefault((user, ""), Sends(self.policies.for_user(user)))
        of_category = self.sends.setdefault((user, category), Sends(self._category(category).policy))
        return [of_user, of_category]

    def _category(self, name: str) -> Category:
        return self.policies.category(name)

    def _lines(self) -> dict[tuple[str, str], list[str]]:
        pairs = sorted({(told.user, told.category) for told in self.told.values()})
        with self.redis.pipeline(transaction=False) as pipe:
            for user, category in pairs:
                pipe.zrange(f"notifier:line:{{{user}}}:{category}", 0, -1)
            return {pair: [_text(job) for job in line] for pair, line in zip(pairs, pipe.execute(), strict=True)}

    def dump(self) -> dict[str, bytes]:
        """Everything in Redis."""
        keys = sorted(self.redis.keys())
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return {_text(key): value for key, value in zip(keys, pipe.execute(), strict=True)}

    def check(self) -> None:
        """Law 2: each job is in exactly one place, and RQ's registries say the same."""
        with self.redis.pipeline(transaction=False) as pipe:
            for lane in LANES:
                pipe.lrange(f"rq:queue:{lane}", 0, -1)
                pipe.zrange(f"rq:scheduled:{lane}", 0, -1)
                pipe.zrange(f"rq:wip:{lane}", 0, -1)
                pipe.zrange(f"rq:failed:{lane}", 0, -1)
                pipe.zrange(f"rq:canceled:{lane}", 0, -1)
            for key in ("later", "leases", "delivered"):
                pipe.zrange(f"notifier:{key}", 0, -1)
            pipe.hgetall("notifier:stats")
            for job_id in self.told:
                pipe.hmget(f"rq:job:{job_id}", "status", "push_permit")
            found = pipe.execute()
        queued, scheduled, started, failed, cancelled = (
            [_text(job) for lane in found[i:15:5] for job in lane] for i in range(5)
        )
        later, leased, delivered = ([_text(job) for job in ids] for ids in found[15:18])
        stats = Counter({_text(word): int(n) for word, n in found[18].items()})
        lined = [job for line in self._lines().values() for job in line]
        # A cancelled job may stand in its queue until it is passed over.
        queued = [job for job in queued if job not in cancelled]
        places = [*queued, *lined, *later, *leased, *delivered, *failed, *cancelled]
        assert sorted(places) == sorted(self.told)
        assert sorted(scheduled) == sorted([*lined, *later])
        permits = dict(zip(self.told, found[19:], strict=True))
        assert sorted(started) == sorted(f"{job}:{_text(permits[job][1])}" for job in leased)
        of_state = (
            ("queue", queued), ("line", lined), ("later", later), ("leased", leased),
            ("delivered", delivered),
        )  # fmt: skip
        for state, jobs in of_state:
            assert [job for job in jobs if self.memory.state(job) != state] == []
        assert {self.memory.state(job) for job in cancelled} <= {"cancelled", "superseded", "dropped"}
        counted = Counter(
            accepted=len(self.told),
            dispatched=self.seen["dispatches"],
            looked=self.seen["looks"],
            refused=self.seen["refused"],
            **self.ended,
        )
        assert +stats == +self.memory.totals == +counted
        assert self._feedback() == [
            (job, user, dead.device.token, dead.app or "", str(dead.gone_at_us or at))
            for at, job, user, dead in self.memory.feedback
        ]

    def _feedback(self) -> list[tuple[str, ...]]:
        entries: Any = self.redis.xrange("notifier:feedback")
        names = (b"job_id", b"user", b"token", b"app", b"gone_at")
        return [tuple(_text(fields[name]) for name in names) for _, fields in entries]

    def gates(self) -> dict[str, int]:
        """The earliest gate of each user."""
        earliest: dict[str, int] = {}
        for lane in LANES:
            gates: Any = self.redis.zrange(f"notifier:gates:{lane}", 0, -1, withscores=True)
            for user, at in gates:
                earliest[_text(user)] = min(int(at), earliest.get(_text(user), int(at)))
        return earliest

    def has_expiring(self, user: str) -> bool:
        """Whether something that waits in a user's lines can expire."""
        waiting = [job for (name, _), line in self._lines().items() if name == user for job in line]
        return any(self.redis.hexists(f"rq:job:{job}", "push_deadline") for job in waiting)

    def due_by_the_rules(self) -> dict[str, int]:
        """For each user with something in a line: the first µs at which the rules admit some head, or one expires."""
        due: dict[str, int] = {}
        for (user, category), line in self._lines().items():
            if line:
                deadline = self.redis.hget(f"rq:job:{line[0]}", "push_deadline")
                at = min(self.earliest(user, category, line[0]), int(deadline) if deadline else sys.maxsize)
                at = max(self.now, at)
                due[user] = min(at, due.get(user, at))
        return due


def _text(value: Any) -> str:
    return str(value, "utf-8")
