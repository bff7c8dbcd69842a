"""Whatever a user does, in whatever order, at whatever moment: the laws hold after every step.

The rules of this machine are what people and workers do: our calls, plain producers (with and without meta, with RQ's
`ttl`, under ids that were used before), RQ's own cancel, delete and requeue, workers that serve some lanes and stop
between any two calls, leases that end, permits that are refunded, rates that change and that workers take up one by
one. It does not say what a script must answer. It holds the laws against what stands in Redis
and what a provider received. `STORY_EXAMPLES` sets how many stories are tried.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis
from rq import Queue
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer

from notifier.limiter import Permit
from notifier.notification.job import targets_in
from notifier.queue import backlogs, calls
from notifier.queue.calls import Job, Leased, Settlement, State
from notifier.queue.retention import Retention
from notifier.rules.category import Category
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import Call, run
from notifier.scripts.rule_table import RuleTable
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.asking import InRedis
from tests.property.amount import examples
from tests.property.world import KEEP, LANES, LEASE, START, S

M = 60 * S
USERS = ("ann", "bob")
LANE_OF = {"chat": "urgent", "news": "bulk", "scores": "default"}
DRAIN = 400


def rates(limit: int, gap_us: int) -> Policies:
    """Rules whose windows are of one length, so that no change asks for what was forgotten."""
    categories = {
        "chat": Category("chat", "urgent", Policy((Window(2 * limit, interval_us=2 * M),))),
        "news": Category("news", "bulk", Policy((Window(limit, interval_us=2 * M),))),
        "scores": Category("scores", "default", when_blocked="collapse"),
        "default": Category("default"),
    }
    return Policies(Policy((Window(2 * limit, interval_us=2 * M),), gap_us), categories=categories)


RATES = (rates(3, M // 10), rates(1, M), rates(2, 0))


@dataclass
class Send:
    """What one send was admitted by, and when it was received; None while it is in flight, or where it never was."""

    category: str
    rates: int
    admitted_us: int
    received_us: int | None = None


@dataclass
class Flight:
    """What a worker has leased, until when, and as which send."""

    leased: Leased
    until_us: int
    send: Send


@dataclass
class Worker:
    """One worker, between any two of its calls. rates: that it has taken up. asked: what its next look tells before."""

    name: str
    lanes: tuple[str, ...]
    rates: int
    asked: dict[str, str] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    orphans: list[Leased] = field(default_factory=list)


@dataclass
class Accepted:
    """A notification as its producer knows it. at_once: no one has touched it since, so that its order is certain."""

    number: int
    user: str
    category: str
    at_once: bool
    gone: bool = False  # deleted through RQ
    again: bool = False  # its id was used once more, maybe while it was in flight


class Story(RuleBasedStateMachine):
    """Users, producers, workers and an administrator."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.redis: Redis = Redis.from_url(self.url)
        self.redis.flushdb()
        self.now, self.accepted = START, dict[str, Accepted]()
        self.permits: list[tuple[Permit, Send]] = []
        self.sends: dict[str, list[Send]] = {user: [] for user in USERS}  # in the order of their admission
        self.rates = 0

    def teardown(self) -> None:
        """In the end all workers are well, and everything comes to its end."""
        try:
            self._drain()
        finally:
            self.redis.close()

    @initialize(split=st.booleans(), rates=st.integers(0, len(RATES) - 1))
    def start(self, split: bool, rates: int) -> None:
        """Two workers serve all lanes, or share them."""
        self.rates = rates
        of = (LANES[:1], LANES[1:]) if split else (LANES, LANES)
        self.workers = [Worker(name, tuple(lanes), rates) for name, lanes in zip("vw", of, strict=True)]

    @rule(
        user=st.sampled_from(USERS),
        category=st.sampled_from(sorted(LANE_OF)),
        copies=st.integers(1, 3),
        send_in_us=st.sampled_from([0, 0, 0, 5 * S, M]),
        expires_in_us=st.sampled_from([None, None, S, 3 * M]),
        high=st.booleans(),
        collapse_id=st.sampled_from([None, "one"]),
    )
    def send(  # noqa: PLR0917 - all that one send says
        self,
        user: str,
        category: str,
        copies: int,
        send_in_us: int,
        expires_in_us: int | None,
        high: bool,
        collapse_id: str | None,
    ) -> None:
        """Our producer accepts some."""
        more = {**({"priority": "high"} if high else {}), **({"collapse_id": collapse_id} if collapse_id else {})}
        meta = json.dumps({"user": user, "category": category, **more}).encode()
        at = self.now + send_in_us if send_in_us else None
        jobs = []
        for _ in range(copies):
            job = Job(f"job{len(self.accepted):03}", LANE_OF[category], b"data", meta, expires_in_us, at)
            at_once = not (send_in_us or high or collapse_id)
            self.accepted[job.id] = Accepted(len(self.accepted), user, category, at_once)
            jobs.append(job)
        call = calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(self.now))
        assert run(self.redis, call) == [job.id for job in jobs]

    @rule(
        user=st.sampled_from(USERS),
        category=st.sampled_from(sorted(LANE_OF)),
        ttl=st.sampled_from([None, None, 77]),
        meta=st.booleans(),
        nth=st.one_of(st.none(), st.integers(0, 60)),
    )
    def plain(self, user: str, category: str, ttl: int | None, meta: bool, nth: int | None) -> None:
        """Somebody else's program enqueues one through RQ alone, maybe under an id that was used before."""
        job_id = f"job{len(self.accepted):03}" if nth is None or not self.accepted else self._id(nth)
        before = self.accepted.get(job_id)
        if before is not None and (before.user, before.category) != (user, category):
            user, category = before.user, before.category
        told = {"user": user, "category": category}
        lane = Queue(LANE_OF[category], connection=self.redis, serializer=JSONSerializer)
        devices = [{"platform": "apns", "token": "ab" * 32}]
        kwargs = {**told, "devices": devices, "title": "plain"}
        lane.enqueue("notifier.deliver", kwargs=kwargs, meta=told if meta else {}, ttl=ttl, job_id=job_id)
        self.accepted[job_id] = Accepted(
            len(self.accepted), user, category, at_once=before is None, again=before is not None
        )

    @precondition(lambda self: self.accepted)
    @rule(nth=st.integers(0, 60))
    def requeue(self, nth: int) -> None:
        """By RQ's own command: what has failed, or expired, begins anew."""
        job_id = self._id(nth)
        if self.redis.zscore(f"rq:failed:{LANE_OF[self.accepted[job_id].category]}", job_id) is not None:
            RqJob.fetch(job_id, connection=self.redis, serializer=JSONSerializer).requeue()
            self.accepted[job_id].at_once = False

    @rule(rates=st.integers(0, len(RATES) - 1))
    def change_rates(self, rates: int) -> None:
        """The file changes; whoever starts from now on follows it."""
        self.rates = rates

    @rule(which=st.integers(0, 1))
    def take_up(self, which: int) -> None:
        """A worker looks at the file."""
        self.workers[which].rates = self.rates

    @rule()
    def sweep(self) -> None:
        """What RQ has cancelled, and what has expired behind others, comes to its end."""
        run(self.redis, backlogs.sweep(LANES, Retention(KEEP, KEEP), lease_us=LEASE, clock=str(self.now)))

    @rule(us=st.sampled_from([1, S, M // 10, LEASE - 1, LEASE, M, 2 * M]))
    def time_passes(self, us: int) -> None:
        """Redis's clock goes on."""
        self.now += us

    @rule(which=st.integers(0, 1), most=st.sampled_from([1, 3, 50]))
    def pull(self, which: int, most: int) -> None:
        """A worker takes what may go. What it was asked before and did not tell is as if it had stalled."""
        self._pull(self.workers[which], most, {})

    @rule(which=st.integers(0, 1), most=st.sampled_from([1, 2, 50]))
    def tell(self, which: int, most: int) -> None:
        """It tells what it was asked, maybe long after, and by the rules of now."""
        worker = self.workers[which]
        self._pull(worker, most, worker.asked)

    @precondition(lambda self: any(worker.flights for worker in self.workers))
    @rule(nth=st.integers(0, 20), outcome=st.sampled_from(["delivered", "delivered", "failed", "later", "backlog"]))
    def settle(self, nth: int, outcome: State) -> None:
        """An answer comes, or the worker finds that it has taken too long: it sends nothing then, and tells so."""
        held = [(worker, flight) for worker in self.workers for flight in worker.flights]
        worker, flight = held[nth % len(held)]
        worker.flights.remove(flight)
        self._settle(worker, flight, outcome)

    @precondition(lambda self: any(worker.orphans for worker in self.workers))
    @rule(which=st.integers(0, 1))
    def prove(self, which: int) -> None:
        """The providers have read all that a dead worker sent: what it had in flight goes back."""
        self._put_back(self.workers[which])

    @rule(which=st.integers(0, 1))
    def die(self, which: int) -> None:
        """A worker dies with all that it holds; what it had sent has arrived. Another begins in its place."""
        worker = self.workers[which]
        for flight in worker.flights:
            self._receive(flight)
        worker.flights, worker.asked, worker.orphans, worker.rates = [], {}, [], self.rates

    @precondition(lambda self: self.accepted)
    @rule(nth=st.integers(0, 60))
    def cancel(self, nth: int) -> None:
        """By our own call."""
        run(self.redis, backlogs.cancel([self._id(nth)], Retention(KEEP), clock=str(self.now)))

    @precondition(lambda self: self.accepted)
    @rule(nth=st.integers(0, 60), verb=st.sampled_from(["cancel", "delete"]))
    def rq(self, nth: int, verb: str) -> None:
        """By RQ's own call, which knows nothing of ours: wherever the job stands, it is to hold up nothing else."""
        job_id = self._id(nth)
        if self.redis.hget(f"rq:job:{job_id}", "status") not in {b"queued", b"scheduled"}:
            return
        getattr(RqJob.fetch(job_id, connection=self.redis, serializer=JSONSerializer), verb)()
        self.accepted[job_id].gone = True

    @rule(user=st.sampled_from(USERS), category=st.sampled_from(sorted(LANE_OF)))
    def acquire(self, user: str, category: str) -> None:
        """Something else is sent to the user, by the limiter alone."""
        answer = self._limiter().acquire(user, self._rules(user, category))
        if isinstance(answer, Permit):
            send = Send(category, self.rates, self.now, self.now)
            self.permits.append((answer, send))
            self.sends[user].append(send)

    @precondition(lambda self: self.permits)
    @rule()
    def refund(self) -> None:
        """It was not sent after all."""
        permit, send = self.permits.pop()
        self._limiter().refund(permit)
        self.sends[permit.user].remove(send)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Law 2: each has ended, or stands where a worker will find it."""
        places = self._places()
        for job_id, accepted in self.accepted.items():
            if not accepted.gone:
                # Under an id that was used again the first may be in flight yet, or stand in a list of RQ's.
                count = places.count(job_id)
                assert count >= 1 if accepted.again else count == 1, (job_id, self.redis.hgetall(f"rq:job:{job_id}"))

    @invariant()
    def whatever_waits_is_looked_at(self) -> None:
        """Law 3: each backlog has a wake-up in its lane, no later than a lease after everything lets its head go."""
        for user in USERS:
            fields: Any = self.redis.hgetall(f"notifier:backlogs:{{{user}}}")
            for category, lane in ((c.decode(), lane.decode()) for c, lane in fields.items()):
                if not category.startswith("#") and self.redis.exists(f"notifier:backlog:{{{user}}}:{category}"):
                    wake_up = self.redis.zscore(f"notifier:wakeups:{lane}", user)
                    assert wake_up is not None
                    assert wake_up <= self.now + max(LEASE, 2 * M) + LEASE

    @invariant()
    def one_worker_sends_a_backlog(self) -> None:
        """Law 4: two workers with heads of one backlog would race each other to the provider."""
        holders: dict[tuple[str, str], set[str]] = {}
        for worker in self.workers:
            for flight in worker.flights:
                leased = flight.leased
                permit = self.redis.hget(f"rq:job:{leased.job_id}", "push_permit")
                if flight.until_us > self.now and permit == leased.permit.encode():
                    holders.setdefault((leased.user, leased.category), set()).add(worker.name)
        assert all(len(names) == 1 for names in holders.values()), holders

    def _id(self, nth: int) -> str:
        return list(self.accepted)[nth % len(self.accepted)]

    def _limiter(self) -> InRedis:
        return InRedis(self.redis, clock=str(self.now))

    def _rules(self, user: str, category: str) -> Rules:
        policies = RATES[self.rates]
        return Rules(policies.for_user(user), policies.category(category))

    def _pull(self, worker: Worker, most: int, targets: dict[str, str]) -> int:
        taken = 0
        while True:
            run(self.redis, backlogs.aim(targets))
            call = calls.pull(
                calls.Worker(
                    name=worker.name, lanes=worker.lanes, lease_us=LEASE, keep=Retention(KEEP), clock=str(self.now)
                ),
                calls.Room(most - taken),
                RuleTable(RATES[worker.rates]),
            )
            pulled = run(self.redis, call)
            worker.orphans += pulled.orphans
            worker.asked = {job_id: _targets(data) for job_id, data, zone in pulled.asked if not zone}
            self._note_leased(worker, pulled.leased)
            taken += len(pulled.leased)
            if not pulled.unread:
                return taken
            read = [(plain.job_id, self._meta_of(plain.job_id)) for plain in pulled.unread]
            run(self.redis, backlogs.steer(read))
            targets = worker.asked

    def _meta_of(self, job_id: bytes) -> str:
        accepted = self.accepted[job_id.decode()]
        return json.dumps({"user": accepted.user, "category": accepted.category})

    def _put_back(self, worker: Worker) -> None:
        for orphan in worker.orphans:
            done = Settlement(orphan.job_id, orphan.permit, orphan.user, orphan.category, reached=True, state="backlog")
            run(self.redis, self._settling(worker, done))
        worker.orphans = []

    def _note_leased(self, worker: Worker, taken: list[Leased]) -> None:
        waiting = self._waiting()
        for leased in reversed(taken):
            waiting[leased.user, leased.category].insert(0, leased.job_id)
        for leased in taken:
            mine, backlog = self.accepted[leased.job_id], waiting[leased.user, leased.category]
            backlog.remove(leased.job_id)
            if mine.at_once:
                before = [self.accepted[other] for other in backlog]
                assert not [o for o in before if o.at_once and not o.gone and o.number < mine.number]
            mine.at_once = False  # it may come back, and stand before or behind others
            send = Send(leased.category, worker.rates, self.now)
            self.sends[leased.user].append(send)
            worker.flights.append(Flight(leased, self.now + LEASE, send))

    def _settle(self, worker: Worker, flight: Flight, outcome: State) -> None:
        leased = flight.leased
        if leased.left_us is not None and leased.left_us <= 0:
            state, word, reached = "failed", "expired", False
        else:
            state, reached = outcome, outcome == "delivered" and self.now < flight.until_us
            state = "backlog" if outcome == "delivered" and not reached else outcome
            word = {"delivered": "delivered", "failed": "failed", "later": "retried"}.get(state, "")
        if reached:
            self._receive(flight)
        done = Settlement(
            leased.job_id,
            leased.permit,
            leased.user,
            leased.category,
            reached,
            state,
            word,
            5 * S if state == "later" else "",
        )
        run(self.redis, self._settling(worker, done))

    def _settling(self, worker: Worker, done: Settlement) -> Call[list[bool]]:
        return calls.settle(
            [done],
            RuleTable(RATES[worker.rates]),
            calls.Worker(name=worker.name, keep=Retention(KEEP, KEEP, KEEP), clock=str(self.now)),
        )

    def _receive(self, flight: Flight) -> None:
        if flight.leased.left_us is None or flight.leased.left_us > 0:
            flight.send.received_us = min(self.now, flight.until_us)

    def _waiting(self) -> dict[tuple[str, str], list[str]]:
        return {
            (user, category): [i.decode() for i in self.redis.zrange(f"notifier:backlog:{{{user}}}:{category}", 0, -1)]
            for user in USERS
            for category in LANE_OF
        }

    def _places(self) -> list[str]:
        found: list[Any] = []
        for lane in LANES:
            cancelled = set(self.redis.zrange(f"rq:canceled:{lane}", 0, -1))
            found += [i for i in self.redis.lrange(f"rq:queue:{lane}", 0, -1) if i not in cancelled]
            found += [*cancelled, *self.redis.zrange(f"rq:failed:{lane}", 0, -1)]
        for key in ("later", "leases", "delivered"):
            found += self.redis.zrange(f"notifier:{key}", 0, -1)
        return [i.decode() for i in found] + [job_id for backlog in self._waiting().values() for job_id in backlog]

    def _drain(self) -> None:
        worker = Worker("last", LANES, self.rates)
        for _ in range(DRAIN):
            taken = self._pull(worker, 50, worker.asked)
            taken += len(worker.orphans)
            self._put_back(worker)
            for flight in worker.flights:
                self._settle(worker, flight, "delivered")
            worker.flights = []
            if not taken and not worker.asked:
                call = calls.pull(
                    calls.Worker(name="last", lanes=LANES, lease_us=LEASE, clock=str(self.now)),
                    calls.Room(50),
                    RuleTable(RATES[self.rates]),
                )
                pulled = run(self.redis, call)
                assert not pulled.leased
                assert not pulled.orphans
                if pulled.next_us is None:
                    break
                self.now = max(self.now + 1, pulled.next_us)
        self.sweep()
        self.nothing_is_lost()
        waits = {i for backlog in self._waiting().values() for i in backlog}
        assert not waits
        for user, sends in self.sends.items():
            for n, send in enumerate(sends):
                self._kept(user, send, sends[:n])

    def _kept(self, user: str, send: Send, before: list[Send]) -> None:
        """Law 1: by the rules that it was admitted by, of all that had been admitted before and was received at all."""
        if send.received_us is None:
            return
        policies = RATES[send.rates]
        of_category = [other for other in before if other.category == send.category]
        scopes = (
            (policies.for_user(user), before),
            (policies.category(send.category).policy, of_category),
        )
        for policy, others in scopes:
            times = [other.received_us for other in others if other.received_us is not None]
            assert all(at + policy.gap_us <= send.admitted_us for at in times if policy.gap_us), (send, times)
            for window in policy.windows:
                assert sum(at > send.admitted_us - window.interval_us for at in times) < window.limit, (send, times)


def _targets(data: bytes) -> str:
    return "- apns:n|device" if data == b"data" else targets_in(data)


def test_whatever_a_user_does_the_laws_hold(redis_server: EmbeddedRedis) -> None:
    """Laws 1 to 5 over stories of calls that come in any order; what fails is printed as the shortest story."""
    Story.url = redis_server.url
    stories = int(os.environ.get("STORY_EXAMPLES", str(examples(120))))
    run_state_machine_as_test(Story, settings=settings(max_examples=stories, stateful_step_count=40))
