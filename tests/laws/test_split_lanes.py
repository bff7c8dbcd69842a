"""Law 3 where workers serve different lanes: any split of the lanes over workers is as fast as none.

What costs time is counted: who wakes up, and who looks in vain. The milliseconds are measured by `make bench`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import redis.asyncio
from redis import Redis

from notifier.queue import calls, leaders
from notifier.queue.calls import Job, Leased, Settlement
from notifier.queue.retention import Retention
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import CalendarWindow, Policy
from notifier.rules.zones import zone_or
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.fleet import broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_workers, total
from workers.loop import idle
from workers.loop.idle import IdleWorker

S = 1_000_000
LEASE_US = 30 * S
START = 1_700_000_000 * S
LANES = ("urgent", "default", "bulk")
SPLITS = [
    (LANES,),
    (("urgent",), ("default",), ("bulk",)),
    (("urgent", "default"), ("bulk",)),
    (("urgent",), ("bulk", "default")),
]
GAP_US = 30_000
CATEGORIES = {"chat": Category("chat", "urgent"), "default": Category("default"), "news": Category("news", "bulk")}
RULES = RuleTable(Policies(Policy(gap_us=GAP_US), categories=CATEGORIES))


def job(job_id: str, category: Category, user: str = "ann") -> Job:
    meta = json.dumps({"user": user, "category": category.name}).encode()
    return Job(job_id, category.lane, b"data", meta)


def delivered(leased: Leased) -> Settlement:
    fields = (leased.job_id, leased.permit, leased.user, leased.category)
    return Settlement(*fields, reached=True, state="delivered", word="delivered")


@dataclass
class Idle:
    """A worker that does nothing until it is woken: by its own timer, a push to one of its queues, or a call."""

    name: str
    lanes: tuple[str, ...]
    due_us: int | None = START
    wake_ups: int = 0
    leased: list[Leased] = field(default_factory=list)

    @property
    def wake_list(self) -> str:
        return leaders.leader_key("wake", self.lanes)


@dataclass
class Simulated:
    """Idle workers on a clock of the test's: a message takes no time, and nobody looks who was not woken."""

    redis: Redis
    idle: list[Idle]
    now: int = START
    arrived: list[tuple[int, str]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def enqueue(self, count: int) -> None:
        categories = list(CATEGORIES.values())
        jobs = [job(f"job{n:03}", categories[n % 3]) for n in range(count)]
        run(self.redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(self.now)))

    def look(self, worker: Idle) -> None:
        """What an engine does when it is woken: pull, and settle at once, until there is nothing more."""
        worker.wake_ups += 1
        moved = True
        while moved:
            run(self.redis, leaders.lead(worker.name, worker.lanes, lapse_ms=60_000))
            caller = calls.Worker(
                name=worker.name, lanes=worker.lanes, lease_us=LEASE_US, leads=True, clock=str(self.now)
            )
            pulled = run(self.redis, calls.pull(caller, calls.Room(50), RULES))
            worker.due_us = pulled.next_us
            moved = bool(pulled.leased or pulled.taken)
            self.seen["looks"] += pulled.idle
            self.seen["dispatches"] += len(pulled.leased)
            self.arrived += [(self.now, leased.job_id) for leased in pulled.leased]
            if pulled.leased:
                self.settle(worker, [delivered(leased) for leased in pulled.leased])

    def settle(self, worker: Idle, done: list[Settlement]) -> None:
        call = calls.settle(done, RULES, calls.Worker(name=worker.name, keep=Retention(S, S, S), clock=str(self.now)))
        run(self.redis, call)

    def step(self) -> None:
        """Wake whoever is called or has something in the queue; nobody there: on to the next timer."""
        woken = [worker for worker in self.idle if self.called(worker)]
        if not woken:
            self.now = max(self.now, min(worker.due_us for worker in self.idle if worker.due_us is not None))
            woken = [worker for worker in self.idle if worker.due_us is not None and worker.due_us <= self.now]
        for worker in woken:
            self.look(worker)

    def called(self, worker: Idle) -> bool:
        called = self.redis.delete(worker.wake_list) == 1
        return called or any(self.redis.llen(f"rq:queue:{lane}") for lane in worker.lanes)


@pytest.mark.parametrize("split", SPLITS)
def test_any_split_of_the_lanes_is_as_fast_as_none(redis: Redis, split: tuple[tuple[str, ...], ...]) -> None:
    """60 of one user in three lanes under one gap: 60 dispatches at the ideal moments, and nobody looks in vain."""
    fleet = Simulated(redis, [Idle(f"w{n}", lanes) for n, lanes in enumerate(split)])
    fleet.step()
    fleet.enqueue(60)
    while len(fleet.arrived) < 60:
        fleet.step()
    assert [at - fleet.arrived[0][0] for at, _ in fleet.arrived] == [n * GAP_US for n in range(60)]
    assert fleet.seen["dispatches"] == 60
    assert fleet.seen["looks"] <= 3 * len(split)
    assert sum(worker.wake_ups for worker in fleet.idle) <= 3 * 60


def test_a_lane_goes_on_when_the_leader_of_a_more_urgent_one_does_not_look(redis: Redis) -> None:
    """Who lets an urgent head go first waits a second for it at most: its worker may have died."""
    fleet = Simulated(redis, [Idle("w0", ("urgent",)), Idle("w1", ("default",))])
    fleet.step()
    fleet.enqueue(6)
    fleet.step()
    fleet.idle.pop(0)
    while not any(job_id == "job004" for _, job_id in fleet.arrived):
        fleet.step()
    moments = [at for at, _ in fleet.arrived]
    assert max(after - before for before, after in pairwise(moments)) <= S + GAP_US


def test_who_asks_for_a_zone_of_another_lane_wakes_its_leader(redis: Redis) -> None:
    """Redis has lost the zone by which a head of *bulk* waits: the worker of *urgent* writes it, and *bulk* looks."""
    policy = Policy(gap_us=10 * S, calendar=(CalendarWindow(9, "day"),))
    rules = RuleTable(Policies(policy, categories=CATEGORIES, zone="UTC"))
    redis.hset(rules.zones, "UTC", zone_or("UTC", "UTC", START).encode())

    def look(lane: str, now: int, *jobs: Job) -> calls.Pulled:
        run(redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(now)))
        run(redis, leaders.lead(lane, (lane,), lapse_ms=60_000))
        worker = calls.Worker(name=lane, lanes=(lane,), lease_us=LEASE_US, leads=lane == "bulk", clock=str(now))
        return run(redis, calls.pull(worker, calls.Room(9), rules))

    [first] = look("urgent", START, job("first", CATEGORIES["chat"])).leased
    keep = Retention(S, S, S)
    run(redis, calls.settle([delivered(first)], rules, calls.Worker(name="urgent", keep=keep, clock=str(START))))
    assert look("bulk", START, job("held", CATEGORIES["news"])).next_us == START + 10 * S
    redis.delete(rules.zones, leaders.leader_key("wake", ("bulk",)))
    assert look("urgent", START + S, job("second", CATEGORIES["chat"])).asked
    assert redis.lrange(leaders.leader_key("wake", ("bulk",)), 0, -1) == [str(START + S).encode()]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle workers that look by themselves once a minute: within a test they look when they are woken, or never."""
    monkeypatch.setattr(idle, "LONGEST_S", 60.0)


class Waiting:
    """A worker for each of these sets of lanes, past its first look, that waits."""

    def __init__(self, server: EmbeddedRedis, split: Sequence[tuple[str, ...]]) -> None:
        self.split = split
        self.client = redis.asyncio.Redis.from_url(server.url)
        blocking = [redis.asyncio.Redis.from_url(server.url, socket_timeout=None) for _ in split]
        self.all = [IdleWorker(blocking[n], self.client, f"w{n}", lanes) for n, lanes in enumerate(split)]

    async def woken_by(self, *push: str) -> list[tuple[str, ...]]:
        """Which of them wake when this is pushed."""
        for one in self.all:
            await one.wait(None)  # takes the lead
        waits = [asyncio.create_task(one.wait(None)) for one in self.all]
        await self.client.rpush(*push)
        await asyncio.wait(waits, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        woken = [lanes for lanes, wait in zip(self.split, waits, strict=True) if wait.done()]
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        for one in self.all:
            await one.close()
        await self.client.aclose()
        return woken


@pytest.mark.usefixtures("patient", "redis")
@pytest.mark.parametrize("lane", LANES)
def test_a_push_wakes_the_one_who_serves_its_lane(redis_server: EmbeddedRedis, lane: str) -> None:
    """One idle worker for each lane: a job wakes its lane's, at once, and no other."""

    async def woken() -> list[tuple[str, ...]]:
        return await Waiting(redis_server, [("urgent",), ("default",), ("bulk",)]).woken_by(f"rq:queue:{lane}", "job")

    assert asyncio.run(woken()) == [(lane,)]


def test_a_backlog_in_three_lanes_of_three_workers_holds_every_law() -> None:
    """At the wire: in order, with the gap kept, and hardly a look in vain, where each worker serves one lane."""
    kinds = list(CATEGORIES)
    rates = {"user": {"gap": "30ms"}, "categories": {name: {"lane": c.lane} for name, c in CATEGORIES.items()}}
    of = {n: ("ann", kinds[n % 3]) for n in range(60)}
    with start_fleet(rates, workers=0) as fleet:
        for lane in LANES:
            fleet.start_worker(("-m", "workers", lane))
        await_workers(fleet.redis, 3)
        with fleet.notifier() as notifier:
            notifier.send_many(notification(user, n, category) for n, (user, category) in of.items())
        fleet.await_ended(len(of))
        arrived = sends(fleet.arrivals(), of)
        broken = broken_rules(fleet, arrived)
        looked = total(fleet.redis, "looked")
    assert broken == []
    for kind in kinds:
        names = [int(send.name) for send in arrived if send.category == kind]
        assert names == sorted(names)
        assert len(names) == 20
    assert looked <= 30
