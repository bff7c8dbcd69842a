"""The scripts in Redis and the plain model, driven side by side by the test's clock.

The model does not do what the scripts do. It says what each call may do: which jobs may move and where to, when a head
may go (as `notifier/rules/evaluator.py` has it), until when a user may be left alone, what a worker must be told.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from notifier.errors import Refused
from notifier.queue import backlogs, calls
from notifier.queue.calls import DeadToken, Job, Leased, Pulled, Settlement, State
from notifier.queue.retention import Retention
from notifier.queue.walk import Kind, Met, Walk, some_delayed
from notifier.rules.evaluator import Sends, opens
from notifier.rules.policies import Rules
from notifier.rules.quiet_hours import ByClock
from notifier.rules.zones import zone_at
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.store.exchange import Exchange, exchange
from tests.harness.take import asks, know, publish_own_rules, write_down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from notifier.rules.category import Category
    from notifier.rules.policies import Policies

START = 1_700_000_000_000_000
S = 1_000_000
LEASE = 30 * S
CLOSED = 60 * S  # as in the script
MOMENT_MS = 1_000
MAX_OLDEST = 10  # of a backlog, among which *enqueue* looks for one to drop
KEEP = 7 * 86_400 * S
LANES = ("urgent", "default", "bulk")
SUSPECT = 2  # crashes after which only what had been begun is to blame
PLACES_OF_WAITING = ("queue", "backlog", "later")
UNSENT = ("cancelled", "superseded", "dropped")
PLACES = [
    *((command, f"rq:{name}:{lane}", 0, -1) for lane in LANES for name, command in (
        ("queue", "LRANGE"), ("scheduled", "ZRANGE"), ("wip", "ZRANGE"), ("failed", "ZRANGE"), ("canceled", "ZRANGE")
    )),
    ("ZRANGE", "notifier:leases", 0, -1),
    ("ZRANGE", "notifier:delivered", 0, -1),
    ("ZRANGE", "notifier:later", 0, -1, "WITHSCORES"),
]  # fmt: skip
READ = """
local found = {}
for i, command in ipairs(cjson.decode(ARGV[1])) do found[i] = redis.call(unpack(command)) end
return found
"""
ZONES = ("Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham")


@dataclass
class Told:
    """What the producer knows of a job, and what was seen of it since.

    due_us: when it falls due that waits for a time of its own. entered: whether it has been in its backlog. gather_us:
    until when it gathers others, as the head of a category with a digest; 0 once there are enough. late: it had expired
    when it came to its backlog, where it joins nothing.
    """

    number: int
    user: str
    category: str
    lane: str
    high: bool
    at_once: bool
    zone: str
    deadline_us: int | None = None
    due_us: int | None = None
    since_us: int = 0
    entered: bool = False
    late: bool = False
    dispatched: int = 0
    attempts: int = 0
    crashes: int = 0
    answered: bytes | None = None
    gather_us: int | None = None
    collapse_id: str | None = None
    superseded: bool = False
    over: Told | None = None
    tags: tuple[str, ...] = ()

    def is_of(self, kind: Kind) -> bool:
        """Whether a cancellation of this kind means it."""
        return (
            kind.category in {None, self.category}
            and kind.collapse_id in {None, self.collapse_id}
            and (kind.tag is None or kind.tag in self.tags)
        )

    def all(self) -> list[Told]:
        """It, and those that were superseded by it, by one of those, and so on."""
        return [self, *self.over.all()] if self.over else [self]

    @property
    def place(self) -> tuple[bool, int]:
        """Where it stands in its backlog: in the place of the first of all those."""
        return min((not told.high, told.number) for told in self.all())


@dataclass(slots=True)
class Flight:
    """A job in a worker's hands: its permit stands in the model's sends, unless it had expired."""

    leased: Leased
    since_us: int
    until_us: int
    lost: bool = False


@dataclass
class World:
    """The two, and what every step must leave true. states: where each job is, as of the last step."""

    redis: Redis
    policies: Policies
    now: int = START
    told: dict[str, Told] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    times: dict[int, int] = field(default_factory=dict)
    feedback: list[tuple[str, ...]] = field(default_factory=list)
    receipts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)  # of the users that name one
    max_waiting: tuple[int, int] | None = None
    taken_at_once: int = 0
    stride: ClassVar[int] = 1  # 1: the jobs' ids are in the order of their acceptance

    def __post_init__(self) -> None:
        self.redis.flushdb()
        self._reads = self.redis.register_script(READ)
        self.began_us = self.now
        self.rules = RuleTable(self.policies)
        publish_own_rules(self.redis, self.rules)
        self.sends: defaultdict[tuple[str, str], Sends] = defaultdict(Sends)
        self.tell_zones()

    def tell_zones(self) -> None:
        """What Redis knows of zones, where a rule goes by the clock."""
        if self.policies.uses_local_time:
            tables = {name: zone_at(name, self.now).encode() for name in ZONES}
            self.redis.hset("notifier:zones", mapping=tables)

    def enqueue(
        self,
        user: str,
        category: str,
        lane: str,
        *,
        high: bool = False,
        expires_in_us: int | None = None,
        send_in_us: int = 0,
        targets: str = "- fcm:n|somewhere",
        plain: bool = False,
        collapse_id: str | None = None,
        tags: tuple[str, ...] = (),
    ) -> str:
        """Accept one job; returns its id. plain: by a producer that does not write its targets down."""
        number, zone = len(self.told) + self.seen["refused"], self.zones.get(user)
        meta = {"user": user, "category": category, **({"priority": "high"} if high else {})}
        meta |= {"collapse_id": collapse_id} if collapse_id else {}
        meta |= {"zone": zone} if zone else {}
        meta |= {"tags": tags} if tags else {}
        send_at = self.now + send_in_us if send_in_us else None
        name = f"job{number * self.stride % 10_000:04}"
        job = Job(name, lane, b"data", json.dumps(meta).encode(), expires_in_us, send_at)
        job = replace(job, targets="" if plain else targets, tagged=user if tags else "")
        self.targets[job.id] = targets
        in_all = of_user = None
        if self.max_waiting is not None:
            in_all, of_user = self.max_waiting
            job = replace(job, overflow=self._category(category).overflow, max_waiting=of_user)
        call = calls.enqueue(
            [job],
            dedupe_for_us=S,
            stamp="",
            max_waiting=in_all,
            keep=Retention(KEEP),
            clock=str(self.now),
        )
        entered, full = self._backlogs(), self._is_full(user)
        (answer,) = run(self.redis, call)
        if isinstance(answer, Refused):
            assert answer == full
            assert not self._makes_room(job, entered.get((user, category), []))
            self._moves()
            self.seen["refused"] += 1
            return ""
        assert answer == job.id
        told = Told(number, user, category, lane, high, not send_in_us, zone or self.policies.zone)
        told.collapse_id, told.tags = collapse_id, tags
        told.due_us = send_at and self._own_time(send_at)
        told.deadline_us = None if expires_in_us is None else self.now + send_in_us + expires_in_us
        self.told[job.id] = told
        made_room = self._moves(">later" if send_at else ">queue", ">backlog", "backlog>dropped", "backlog>superseded")
        assert len(made_room) == 1 + (full is not None)
        assert (made_room[job.id] == ">backlog") == ("backlog>superseded" in made_room.values())
        self._note_dropped(entered)
        self._note_superseded()
        return job.id

    def _own_time(self, send_at: int) -> int:
        """Those for one moment come one µs after the other, in the order in which they were accepted."""
        self.times[send_at] = max(send_at, self.times.get(send_at, 0)) + 1
        return self.times[send_at] - 1

    def _is_full(self, user: str) -> Refused | None:
        """What one more would be refused with, where nothing can make room for it."""
        if self.max_waiting is None:
            return None
        in_all, of_user = self.max_waiting
        own = [job_id for job_id, told in self.told.items() if told.user == user]
        arriving = sum(self.states[job_id] in {"queue", "later"} and not self.told[job_id].entered for job_id in own)
        waiting = arriving + sum(self.states[job_id] == "backlog" for job_id in own)
        if waiting >= of_user:
            return Refused(user, "user", waiting, of_user)
        # Those that were cancelled in a queue are counted until a worker comes to them.
        waiting = sum(self.redis.llen(f"rq:queue:{lane}") for lane in LANES)
        waiting += sum(state in {"backlog", "later"} for state in self.states.values())
        return Refused(user, "all", waiting, in_all) if waiting >= in_all else None

    def _makes_room(self, job: Job, backlog: list[str]) -> bool:
        """Whether something that waits in its backlog must give way to a job that was refused."""
        told = [self.told[job_id] for job_id in backlog]
        if job.overflow == "drop_oldest":
            return any(not one.dispatched for one in told) and len(told) <= MAX_OLDEST
        if job.overflow == "collapse" and not job.send_at_us:
            collapse_id = json.loads(job.meta).get("collapse_id")
            of_both = [one for one in told if one.collapse_id == collapse_id is not None]
            return len(of_both) == 1 and not of_both[0].dispatched and len(self._ever(of_both[0])) == 1
        return False

    def _ever(self, told: Told) -> list[Told]:
        """All that ever were in this backlog under its collapse id: the newest of them is the one that may give way."""
        alike = (told.user, told.category, told.collapse_id)
        return [one for one in self.told.values() if one.entered and (one.user, one.category, one.collapse_id) == alike]

    def _moves(self, *allowed: str) -> dict[str, str]:
        """Look again where each job is: those that have moved, each as 'from>to', moved in ways that are allowed."""
        before, self.states = self.states, self.observe()
        moves = {
            job_id: f"{before.get(job_id, '')}>{state}"
            for job_id, state in self.states.items()
            if state != before.get(job_id)
        }
        assert {job_id: move for job_id, move in moves.items() if move not in allowed} == {}
        for job_id in (job_id for job_id, move in moves.items() if move.endswith(">backlog")):
            told = self.told[job_id]
            told.late |= not told.entered and told.deadline_us is not None and told.deadline_us <= self.now
            told.entered = True
        return moves

    def pull(self, most: int = 50, worker: str = "w") -> Pulled:
        """One look of a worker, which tells what it is asked for; leases that have ended are over for their workers."""
        self.taken_at_once = 0
        while True:
            pulled = self._pull_once(most - self.taken_at_once, worker)
            self.taken_at_once += len(pulled.leased)
            for orphan in pulled.orphans:
                self._put_back(orphan)
            if not (pulled.orphans or asks(pulled)) or self.taken_at_once >= most:
                break
            self._tell(pulled)
        self.seen["pulls"] += 1
        return pulled

    def round(self, most: int = 50) -> int:
        """One look; returns how many jobs were taken."""
        self.pull(most)
        return self.taken_at_once

    def _tell(self, pulled: Pulled) -> None:
        if pulled.unpublished:
            publish_own_rules(self.redis, self.rules)
        write_down(self.redis, self.rules, pulled)
        run(self.redis, backlogs.aim({job_id: self.targets[job_id] for job_id, _, zone in pulled.asked if not zone}))

    def _of_whom_it_asks(self, pulled: Pulled) -> set[str]:
        if pulled.unpublished:
            return {told.user for told in self.told.values()}
        return {user for user, _ in pulled.chosen} | {self.told[job_id].user for job_id, *_ in pulled.asked}

    def _pull_once(self, most: int, worker: str) -> Pulled:
        know(self.rules, {each.category for each in self.told.values()})
        call = calls.pull(
            calls.Worker(name=worker, lanes=LANES, lease_us=LEASE, keep=Retention(KEEP), clock=str(self.now)),
            calls.Room(most),
            self.rules,
        )
        queued = self._queued()
        lapsed = {flight.leased.job_id for flight in self.flights if flight.until_us <= self.now and not flight.lost}
        for_routes = self.waiting_for_routes()
        due = {
            job_id
            for job_id, each in self.told.items()
            if self.states[job_id] == "later" and each.due_us is not None and each.due_us <= self.now
        }
        waiting, wake_ups = self._backlogs(), self.wake_ups()
        had_waiting = {user for (user, _), backlog in waiting.items() if backlog}
        pulled = run(self.redis, call)
        moves = self._moves(
            "queue>leased",
            "queue>backlog",
            "queue>superseded",
            "later>leased",
            "later>backlog",
            "backlog>leased",
            "backlog>later",
            "later>superseded",
            "leased>backlog",
            "backlog>superseded",
        )
        back = {job_id for job_id, move in moves.items() if move == "leased>backlog"}
        back |= {leased.job_id for leased in pulled.leased} & lapsed
        for job_id in back:  # nothing of it was sent: it had expired, or is dropped
            self._lose(next(flight for flight in self.flights if flight.leased.job_id == job_id and not flight.lost))
        self._note_superseded()
        self._note_gathering()
        self._note_leased(pulled, moves | dict.fromkeys(back, "leased>leased"), waiting)
        looked_at, asked_of = {user for user, at in wake_ups.items() if at <= self.now}, self._of_whom_it_asks(pulled)
        looked_at |= {user for user, _ in self._backlogs()} - had_waiting
        self._check_expected(looked_at - asked_of)
        assert not asked_of & {leased.user for leased in pulled.leased if not self.targets}
        fell_due = {job_id for job_id, move in moves.items() if move.startswith("later>")}
        orphans = {orphan.job_id for orphan in pulled.orphans}
        assert back | orphans <= lapsed
        assert len(back) + len(orphans) == min(len(lapsed), most)
        assert fell_due <= due | {member[1:] for member in for_routes}
        assert pulled.taken == queued - self._queued()
        assert pulled.taken <= max(most, len(LANES))
        assert len(pulled.leased) <= most
        if len(lapsed) > most:  # nobody goes past the dead
            assert (pulled.leased, asked_of, pulled.taken, fell_due) == ([], set(), 0, set())
            return pulled
        if len(lapsed) + len(due) + queued <= most // 4:  # there was room for all
            assert due <= fell_due
            assert pulled.taken == queued
            if not asked_of and len(pulled.leased) + pulled.idle < most // 4:
                assert [user for user, at in self.wake_ups().items() if at <= self.now] == []
        waking = self.wake_ups()
        assert all(waking[user] <= self.now for user in asked_of & waking.keys()), "they are due still"
        self._check_next(pulled)
        self._check_collapsed()
        return pulled

    def _queued(self) -> int:
        return sum(self._read([("LLEN", f"rq:queue:{lane}") for lane in LANES]))

    def _note_leased(self, pulled: Pulled, moves: dict[str, str], waiting: dict[tuple[str, str], list[str]]) -> None:
        """What was leased: new, of a user with nothing that waits; or due, and at the head of its backlog."""
        assert sorted(leased.job_id for leased in pulled.leased) == sorted(
            job_id for job_id, move in moves.items() if move.endswith(">leased") and self.states[job_id] == "leased"
        )
        had_waiting = {user for (user, _), backlog in waiting.items() if backlog}
        new = {leased.job_id for leased in pulled.leased if leased.since_us is None}
        for job_id, move in moves.items():
            told = self.told[job_id]
            if move == "backlog>superseded":
                waiting[told.user, told.category].remove(job_id)
            elif move == "backlog>later":
                self.step_aside(job_id)
            elif move.startswith(("queue>", "later>", "leased>")) and not move.endswith(">superseded"):
                told.entered = True
                told.since_us = told.since_us or (self.now if self.policies.uses_local_time else 0)
                if job_id not in new:
                    waiting.setdefault((told.user, told.category), []).append(job_id)
        for leased in pulled.leased:
            flight = Flight(leased, self.now, self.now + LEASE)
            if leased.since_us is None:
                self._check_new(leased, had_waiting)
                self._dispatched(flight, {(leased.user, leased.category): [leased.job_id]})
            else:
                assert leased.since_us <= self.now
                self._dispatched(flight, waiting)
        self.seen["looks"] += pulled.idle

    def _check_new(self, leased: Leased, had_waiting: set[str]) -> None:
        told = self.told[leased.job_id]
        assert told.user not in had_waiting
        assert not [
            other
            for job_id, other in self.told.items()
            if self.states[job_id] == "queue" and other.at_once and other.number < told.number
            if (other.user, other.category, other.lane) == (told.user, told.category, told.lane)
        ]

    def _lose(self, flight: Flight) -> None:
        flight.lost = True
        told = self.told[flight.leased.job_id]
        told.crashes = min(told.crashes + 1, SUSPECT)
        self.seen["lapsed"] += 1

    def _put_back(self, orphan: Leased) -> None:
        """Its provider has read what a dead worker may have sent: from now on the rules count it."""
        flight = next(f for f in self.flights if f.leased.permit == orphan.permit and not f.lost)
        told = self.told[orphan.job_id]
        assert (orphan.job_id, orphan.user, orphan.category) == (flight.leased.job_id, told.user, told.category)
        assert (orphan.data, orphan.answered) == (b"data", told.answered)
        self.settle(flight, "backlog", reached=True)
        self.flights.append(flight)
        self._lose(flight)
        assert orphan.crashes == told.crashes

    def waiting_for_routes(self) -> set[str]:
        """The users who wait for something that is held, as the scripts name them; see `Routed`."""
        return set()

    def _check_collapsed(self) -> None:
        """Of what a backlog has and no worker has had, one waits for each collapse id if its category collapses."""
        for (_, category), backlog in self._backlogs().items():
            told = [self.told[job_id] for job_id in backlog]
            waiting = [one for one in told if not (one.dispatched or one.late)]
            if self._category(category).when_blocked == "digest":
                assert len(waiting) <= 1
            elif self._category(category).when_blocked == "collapse":
                assert max(Counter(told.collapse_id for told in waiting if told.collapse_id).values(), default=0) <= 1

    def _check_next(self, pulled: Pulled) -> None:
        """Law 3: a worker that sleeps is told of the first thing that falls due; where routes are held of no later."""
        firsts: list[Any] = [
            self.redis.zrange(f"notifier:{key}", 0, 0, withscores=True)
            for key in ("later", "leases", *(f"wakeups:{lane}" for lane in LANES))
        ]
        first = min((int(entry[0][1]) for entry in firsts if entry), default=None)
        if self.redis.exists("notifier:routes"):
            assert first is None or (pulled.next_us is not None and pulled.next_us <= first)
        else:
            assert pulled.next_us == first

    def _note_superseded(self) -> None:
        """Each that was superseded had never left its backlog, and another of its collapse id has its place."""
        for job_id, old in self.told.items():
            if old.superseded or self.states[job_id] != "superseded":
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
            digest = self._category(new.category).digest
            new.gather_us = 0 if digest and len(new.all()) >= digest.after else old.gather_us
            new.at_once = in_order

    def _note_dropped(self, entered: dict[tuple[str, str], list[str]]) -> None:
        """Who was dropped was the oldest of its backlog, of those that no worker had tried."""
        for (_, category), ids in entered.items():
            for job_id in ids:
                if self.states[job_id] == "dropped":
                    self.ended["dropped"] += 1
                    assert self._category(category).overflow == "drop_oldest"
                    assert self.redis.hget(f"rq:job:{job_id}", "push_reason") == b"overflow"
                    before = [self.told[other] for other in ids[: ids.index(job_id)]]
                    assert all(other.dispatched or other.high for other in before)

    def check_dropped(self, leased: Leased) -> None:
        """Only where its category lets nothing wait, and what no worker has had."""
        told = self.told[leased.job_id]
        assert leased.dropped
        assert self._category(leased.category).when_blocked == "drop"
        assert told.attempts == told.crashes == 0

    def step_aside(self, job_id: str) -> None:
        """The rest of what other routes took leaves its backlog; without routes there is none."""
        raise AssertionError(job_id)

    def _check_expected(self, users: set[str]) -> None:
        """The heads of users who were looked at, and are not due any more, are held back by their rules."""
        wake_ups, for_routes = self.wake_ups(), self.waiting_for_routes()
        users = {user for user in users if wake_ups.get(user, 0) > self.now}
        users -= {name.partition(" ")[2] for name in for_routes}
        if not users:
            return
        of_the_dead = {flight.leased.user for flight in self.flights if flight.lost or flight.until_us <= self.now}
        in_flight = {(flight.leased.user, flight.leased.category) for flight in self.flights}
        scheduled: dict[str, int] = {}
        for of_lane in self._read([("ZRANGE", f"rq:scheduled:{lane}", 0, -1, "WITHSCORES") for lane in LANES]):
            pairs = zip(of_lane[::2], of_lane[1::2], strict=True)
            scheduled |= {_text(job_id): round(float(at) * 1e6) for job_id, at in pairs}
        for (user, category), backlog in self._backlogs().items():
            if user not in users or not backlog:
                continue
            at = scheduled[backlog[0]]
            is_shut = user in of_the_dead or (user, category) in in_flight  # until something is settled
            if not is_shut or at != self.now + LEASE:
                self.check_wait(user, category, backlog[0], at)

    def check_wait(self, user: str, category: str, job_id: str, at_us: int) -> None:
        """Law 3: RQ is told exactly until when the rules hold a head back, or a digest that gathers."""
        assert at_us == self.earliest(user, category, job_id)

    def _note_gathering(self) -> None:
        """A head that is held back for the first time gathers from then on; what joins it gathers as long, or goes."""
        heads = [
            backlog[0]
            for (_, category), backlog in self._backlogs().items()
            if backlog and self._category(category).digest
        ]
        for job_id in heads:
            told, found = self.told[job_id], self.redis.hget(f"rq:job:{job_id}", "push_gather")
            digest = self._category(told.category).digest
            assert digest is not None
            if told.dispatched:
                continue
            if len(told.all()) >= digest.after:
                told.gather_us = 0
            elif told.gather_us is None and found is not None:
                told.gather_us = self.now + digest.within_us
            assert told.gather_us == (None if found is None else int(found))

    def may_pass(self, job_id: str, other: str) -> bool:  # noqa: ARG002 - a world with devices knows of one case
        """Whether one may go before another of its backlog that came before it."""
        return False

    def _dispatched(self, flight: Flight, waiting: dict[tuple[str, str], list[str]]) -> None:
        leased = flight.leased
        self.flights.append(flight)
        self.seen["dispatches"] += 1
        told = self.told[leased.job_id]
        backlog = waiting[leased.user, leased.category]
        backlog.remove(leased.job_id)
        if not told.dispatched and told.at_once:
            # Law 4: nothing that came before it still waits: the urgent first, then in the order of acceptance.
            place = told.place
            others = [self.told[job_id] for job_id in backlog if not self.may_pass(leased.job_id, job_id)]
            assert not [
                other
                for other in others
                if other.place < place and not other.dispatched and other.at_once and other.lane == told.lane
            ]
        told.dispatched += 1
        assert (leased.user, leased.category, leased.data) == (told.user, told.category, b"data")
        assert leased.stands_for == len(told.all())
        assert (leased.attempts, leased.crashes, leased.answered) == (told.attempts, told.crashes, told.answered)
        assert leased.left_us == (None if told.deadline_us is None else told.deadline_us - self.now)
        gathered, told.gather_us = told.gather_us or 0, None
        if leased.left_us is not None and leased.left_us <= 0:
            return
        if leased.dropped:
            self.check_dropped(leased)
            assert self.earliest(leased.user, leased.category, leased.job_id) > self.now
            return
        assert gathered <= self.now
        # Law 1 (and 5): it goes only when what was really sent, and nothing else, lets it.
        assert self.earliest(leased.user, leased.category, leased.job_id) <= self.now
        rules = self._rules(leased.user, leased.category)
        scopes = zip((rules.user, rules.category.policy), self._sends(leased.user, leased.category), strict=True)
        for policy, sends in scopes:
            sends.add(policy, leased.permit, flight.until_us, self.now, cost=rules.category.cost)

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
            "" if state == "backlog" else wait_us,
            answered,
            gone,
        )
        before = self.dump() if flight.lost else None
        call = calls.settle(
            [settlement], self.rules, calls.Worker(name="w", keep=Retention(KEEP, KEEP, KEEP), clock=str(self.now))
        )
        (mine,) = run(self.redis, call)
        assert mine is not flight.lost
        if flight.lost:
            assert self.dump() == before
            return False
        self._note_gathering()
        told = self.told[leased.job_id]
        assert self._moves(f"leased>{state if state != 'wait' else 'later'}")
        told.attempts += state == "later"
        if state in {"later", "wait"}:
            told.due_us = self.now + int(wait_us)
            if told.deadline_us is not None:  # it ends at its expiry, not at a wait after it
                told.due_us = max(self.now, min(told.due_us, told.deadline_us))
        if answered and state in {"later", "wait", "backlog"}:
            told.answered = answered.encode()
        self.feedback += [
            (leased.job_id, leased.user, dead.device.token, dead.app or "", str(dead.gone_at_us or self.now))
            for dead in gone
        ]
        if word:
            self.ended[word] += 1
        for sends in self._sends(leased.user, leased.category):
            if reached:
                sends.move(leased.permit, self.now)
            else:
                sends.remove(leased.permit)
        return True

    def cancel(self, job_id: str) -> str:
        """Cancel one job; what one of its devices took before is delivered."""
        before, told = self.states[job_id], self.told[job_id]
        cancel = backlogs.cancel([job_id], Retention(KEEP, KEEP), clock=str(self.now))
        (answer,) = run(self.redis, cancel)
        word = "delivered" if b'"delivered"' in (told.answered or b"") else "cancelled"
        moved = self._moves(*(f"{place}>{word}" for place in ("queue", "backlog", "later")))
        waits = before in {"queue", "backlog", "later"}
        assert list(moved) == [job_id] * waits
        late = "sending" if before == "leased" else "ended"
        assert answer == ("cancelled" if "cancelled" in {before, word if waits else ""} else late)
        self.ended[word] += waits
        return answer

    def cancel_of(self, user: str, kind: Kind, most: int) -> None:
        """Cancel all of a kind, by pages of about so many: those that wait end, and those in flight are told."""
        meant = {job_id for job_id, told in self.told.items() if told.user == user and told.is_of(kind)}
        waiting = {job_id for job_id in meant if self.states[job_id] in {"queue", "backlog", "later"}}
        in_flight = {job_id for job_id in meant if self.states[job_id] == "leased"}
        answers = dict[str, str]()

        def meet(met: Sequence[Met], _: int) -> Exchange[None]:
            job_ids = [each.job_id for each in met]
            told = yield backlogs.cancel(job_ids, Retention(KEEP, KEEP), clock=str(self.now))
            answers.update(zip(job_ids, told, strict=True))

        assert not exchange(self.redis, some_delayed())  # others' backlogs are not read
        exchange(self.redis, Walk(kind, meet, page=most).of_user(user))
        cancelled = sum(answer == "cancelled" for answer in answers.values())
        too_late = {job_id for job_id, answer in answers.items() if answer != "cancelled"}
        delivered = {job_id for job_id in waiting if b'"delivered"' in (self.told[job_id].answered or b"")}
        moved = self._moves(*(f"{place}>{word}" for place in PLACES_OF_WAITING for word in ("cancelled", "delivered")))
        assert {job_id for job_id, move in moved.items() if move.endswith(">cancelled")} == waiting - delivered
        assert {job_id for job_id, move in moved.items() if move.endswith(">delivered")} == delivered
        assert (cancelled, too_late) == (len(waiting - delivered), in_flight | delivered)
        self.ended["cancelled"] += cancelled
        self.ended["delivered"] += len(delivered)
        self.seen["cancelled at once"] += len(waiting)

    def received(self, flight: Flight, at_us: int) -> None:
        """The provider took it at this moment."""
        self.receipts.setdefault(flight.leased.user, []).append((at_us, flight.leased.category))

    def earliest(self, user: str, category: str, job_id: str) -> int:
        """The first µs at which the rules and a digest admit a send; 0 for a category that bypasses them."""
        rules, (of_user, own), told = self._rules(user, category), self._sends(user, category), self.told[job_id]
        clock = None
        if rules.uses_local_time:
            zone = zone_at(told.zone, self.now)
            clock = ByClock(rules, zone, told.since_us, self.policies.lead_us, of_user.latest, own.latest)
        return opens(rules, of_user, own, self.now, clock=clock, gather_us=told.gather_us or 0)[0]

    def _rules(self, user: str, category: str) -> Rules:
        return self.policies.rules(user, category)

    def _sends(self, user: str, category: str) -> tuple[Sends, Sends]:
        return self.sends[user, ""], self.sends[user, category]

    def _category(self, name: str) -> Category:
        return self.policies.category(name)

    def _backlogs(self) -> dict[tuple[str, str], list[str]]:
        pairs = sorted({(told.user, told.category) for told in self.told.values()})
        found = self._read([("ZRANGE", f"notifier:backlog:{{{user}}}:{category}", 0, -1) for user, category in pairs])
        return {pair: [_text(job) for job in backlog] for pair, backlog in zip(pairs, found, strict=True)}

    def _read(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """What these answer, asked by one command: this model asks more often than it acts. Scores come as text."""
        return self._reads(args=[json.dumps(commands)])

    def dump(self) -> dict[str, Any]:
        """Everything in Redis that lasts: by its own clock a key of a moment of the test's may end between two looks.

        DUMP has the fields of a large hash in an order that reading it may change.
        """
        left_ms = {key: self.redis.pttl(key) for key in sorted(self.redis.keys())}
        keys = [key for key, left in left_ms.items() if left == -1 or left >= MOMENT_MS]
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                if key.startswith(b"rq:job:"):
                    pipe.hgetall(key)
                else:
                    pipe.dump(key)
            return {_text(key): value for key, value in zip(keys, pipe.execute(), strict=True)}

    def observe(self) -> dict[str, str]:
        """Where each job is. Law 2: in exactly one place, and RQ's registries say the same."""
        found = self._read(PLACES)
        queued, scheduled, started, failed, cancelled = (
            [_text(job) for lane in found[i:15:5] for job in lane] for i in range(5)
        )
        leased, delivered = ([_text(job) for job in ids] for ids in found[15:17])
        later = _scored(found[17])
        permits, outcomes = self._fields("push_permit", leased), self._fields("push_outcome", cancelled)
        entered = [job for backlog in self._backlogs().values() for job in backlog]
        # A cancelled job may stand in its queue until it is passed over.
        queued = [job for job in queued if job not in cancelled]
        states = {job: outcomes[job] for job in cancelled}
        assert set(states.values()) <= set(UNSENT)
        of_state = {
            "queue": queued, "backlog": entered, "later": later, "leased": leased, "delivered": delivered, "failed":
            failed
        }  # fmt: skip
        for state, jobs in of_state.items():
            states |= dict.fromkeys(jobs, state)
        # What has ended is kept for a week of the test's time.
        forgotten = {job for job in self.told if self.states.get(job) in {"delivered", *UNSENT} and job not in states}
        assert not forgotten or self.now - self.began_us >= KEEP
        places = [*queued, *entered, *later, *leased, *delivered, *failed, *cancelled, *forgotten]
        assert sorted(places) == sorted(self.told)
        assert sorted(scheduled) == sorted([*entered, *later])
        assert sorted(started) == sorted(f"{job}:{permits[job]}" for job in leased)
        return states | {job: self.states[job] for job in forgotten}

    def _fields(self, name: str, ids: list[str]) -> dict[str, str]:
        """One field of each of these jobs."""
        if not ids:
            return {}
        found = self._read([("HGET", f"rq:job:{job_id}", name) for job_id in ids])
        return {job_id: _text(value) for job_id, value in zip(ids, found, strict=True)}

    def _check_waits(self) -> None:
        """Why they wait is counted of all that stand in backlogs, each under what was decided of its backlog last."""
        found: Counter[str] = Counter()
        for key in self.redis.scan_iter("notifier:backlog:*"):
            user, category = _text(key).removeprefix("notifier:backlog:{").rsplit("}:", 1)
            why: Any = self.redis.hget(f"notifier:backlogs:{{{user}}}", f"#w:{category}")
            found[_text(why or b"?")] += int(self.redis.zcard(key))  # type: ignore[arg-type]
        counted: Any = self.redis.hgetall("notifier:waits")
        assert {_text(why): int(n) for why, n in counted.items()} == dict(found)

    def check(self) -> None:
        """Law 2: all is counted, and the dead tokens are told. Law 3: whoever waits is looked at in time."""
        self._check_waits()
        later: Any = self.redis.zrange("notifier:later", 0, -1, withscores=True)
        assert {_text(job): int(at) for job, at in later} == {
            _text(job): self.told[_text(job)].due_us for job, _ in later
        }
        found: Any = self.redis.hgetall("notifier:stats")
        stats = Counter({_text(word): int(n) for word, n in found.items()})
        counted = Counter(
            accepted=len(self.told),
            dispatched=self.seen["dispatches"],
            looked=self.seen["looks"],
            refused=self.seen["refused"],
            **self.ended,
        )
        assert +stats == +counted
        assert self._feedback() == self.feedback
        self._check_wake_ups()

    def _check_wake_ups(self) -> None:
        waiting, wake_ups = self.waiting_for_routes(), self.wake_ups()
        of_the_dead = {flight.leased.user for flight in self.flights if flight.lost or flight.until_us <= self.now}
        in_flight = {(flight.leased.user, flight.leased.category) for flight in self.flights}
        for (user, category), backlog in self._backlogs().items():
            if not backlog:
                continue
            lane = _text(self.redis.hget(f"notifier:backlogs:{{{user}}}", category))
            waits_for_route = f"u{lane} {user}" in waiting
            assert waits_for_route or self.redis.zscore(f"notifier:wakeups:{lane}", user) is not None
            # Of a user for whom there was no room, the wake-up of one lane alone is due.
            if not waits_for_route and wake_ups[user] > self.now:
                due = self._due(user, category, backlog[0])
                if user in of_the_dead:  # to settle it opens the user's backlogs; their wake-ups are for the worst case
                    due = max(due, self.now + CLOSED)
                elif (user, category) in in_flight:  # and so with a backlog whose next must not pass what is under way
                    due = max(due, self.now + LEASE)
                assert wake_ups[user] <= due

    def _due(self, user: str, category: str, head: str) -> int:
        """The first µs at which something is to be done about the head of a backlog."""
        told = self.told[head]
        at = max(self.now, self.earliest(user, category, head))
        return at if told.deadline_us is None else max(self.now, min(at, told.deadline_us))

    def _feedback(self) -> list[tuple[str, ...]]:
        entries: Any = self.redis.xrange("notifier:feedback")
        names = (b"job_id", b"user", b"token", b"app", b"gone_at")
        return [tuple(_text(fields[name]) for name in names) for _, fields in entries]

    def wake_ups(self) -> dict[str, int]:
        """The earliest wake-up of each user."""
        earliest: dict[str, int] = {}
        for wake_ups in self._read([("ZRANGE", f"notifier:wakeups:{lane}", 0, -1, "WITHSCORES") for lane in LANES]):
            for user, at in _scored(wake_ups).items():
                earliest[user] = min(at, earliest.get(user, at))
        return earliest

    def has_expiring(self, user: str) -> bool:
        """Whether something that waits in a user's backlogs can expire."""
        waiting = [job for (name, _), backlog in self._backlogs().items() if name == user for job in backlog]
        return any(self._read([("HEXISTS", f"rq:job:{job}", "push_deadline") for job in waiting]))

    def due_by_the_rules(self) -> dict[str, int]:
        """For each user with something in a backlog: the first µs at which the rules admit a head, or one expires."""
        due: dict[str, int] = {}
        for (user, category), backlog in self._backlogs().items():
            if backlog:
                at = self._due(user, category, backlog[0])
                due[user] = min(at, due.get(user, at))
        return due


def _scored(flat: list[bytes]) -> dict[str, int]:
    return {_text(member): int(float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)}


def _text(value: Any) -> str:
    return str(value, "utf-8")
