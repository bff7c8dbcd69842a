"""In which order those go that a route held back: among themselves, and beside others who are due."""

import json
from typing import Any, Final

import pytest
from redis import Redis

from notifier.queue.calls import Job
from notifier.queue.circuits import FAR_US, circuit
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.loader import run
from notifier.scripts.records import CircuitFields
from notifier.scripts.rule_table import RuleTable
from tests.contract.test_direct import LEASE, S, Worker

CATEGORIES: Final = {name: Category(name) for name in ("default", "other")}
RULES: Final = RuleTable(Policies(categories=CATEGORIES))
WAITING: Final = "notifier:waiting_for_route:fcm"


def see(worker: Worker, seen: str) -> str:
    """What the worker tells of the route of fcm; or a person of its name."""
    probe: dict[str, Any] = {"kind": "unreachable", "first_us": 10 * S, "max_us": 60 * S}
    return run(worker.redis, circuit(CircuitFields(str(worker.now), worker.name, "fcm", seen, "Refused", **probe)))


def send(
    worker: Worker, name: str, user: str = "ann", category: str = "default", targets: str = "- fcm:n|b", **meta: Any
) -> None:
    written = json.dumps({"user": user, "category": category, **meta}).encode()
    worker.accept(Job(name, "default", b"data", written, targets=targets, category=category))


def taken(worker: Worker) -> list[str]:
    return [each.job_id for each in worker.take()]


def refuse(worker: Worker, *users: str) -> None:
    """One message of each is sent, and the provider refuses it without spending its attempt."""
    for user in users:
        send(worker, f"{user}1", user)
    for leased in worker.take():
        worker.end(leased, "backlog", detail="fault")


def test_who_was_due_before_goes_before_those_whom_a_route_lets_go(redis: Redis) -> None:
    """However many these are: a batch is of those who have waited longest."""
    worker = Worker(redis, rules=RuleTable(Policies(Policy(gap_us=10 * S))))
    for n in range(60):
        send(worker, f"first{n}", f"due{n}", targets=f"- apns:n|{n}")
        send(worker, f"due{n}", f"due{n}", targets=f"- apns:n|{n}")
    while leased := worker.take():
        worker.settle(leased)
    see(worker, "down")
    for n in range(40):
        send(worker, f"held{n}", f"held{n}")
    assert (taken(worker), redis.zcard(WAITING)) == ([], 40)
    worker.now += 20 * S
    assert see(worker, "up") == "closed"
    gone = taken(worker)
    assert (len(gone), {name[:3] for name in gone}) == (50, {"due"})
    gone += taken(worker)
    assert len(set(gone)) == 100


def test_what_was_refused_before_waits_behind_the_others(redis: Redis) -> None:
    """Another message proves whether the fault was its own. A user of whom another waits too is not put behind."""
    worker = Worker(redis, rules=RULES)
    refuse(worker, "ann", "bob", "cy")
    see(worker, "down")
    send(worker, "bob2", "bob", "other")
    send(worker, "cy2", "cy", "other", priority="high")
    worker.now += S // 10
    send(worker, "dan1", "dan")
    assert taken(worker) == []
    assert redis.zrange(WAITING, 0, -1) == [b"udefault bob", b"udefault cy", b"udefault dan", b"udefault ann"]


def test_what_was_refused_waits_in_its_turn_for_a_pause(redis: Redis) -> None:
    """Nothing is proved by that: a person has stopped the route."""
    worker = Worker(redis, rules=RULES)
    refuse(worker, "ann")
    see(worker, "pause")
    assert taken(worker) == []
    worker.now += S
    send(worker, "bob1", "bob")
    assert taken(worker) == []
    assert redis.zrange(WAITING, 0, -1) == [b"udefault ann", b"udefault bob"]


@pytest.mark.parametrize("refused", [False, True])
def test_the_rest_of_one_holds_those_behind_it_unless_it_was_refused(redis: Redis, *, refused: bool) -> None:
    """Law 4 by each route; a fault of one message holds nobody, and another message proves it."""
    worker = Worker(redis, rules=RULES)
    send(worker, "rest", targets="- apns:n fcm:n|a b")
    (leased,) = worker.take()
    see(worker, "down")
    redis.hset("rq:job:rest", "push_deadline", worker.now + 20 * S)
    why, answered = "fault" if refused else "", json.dumps({"0": ["delivered"]})
    worker.end(leased, "backlog", reached=True, detail=why, answered=answered)
    redis.hset("notifier:leaders", "urgent", FAR_US)
    worker.now += S
    assert taken(worker) == []
    ((rest, order),) = redis.zrange(WAITING, 0, -1, withscores=True)
    assert (rest, order >= FAR_US) == (b"jrest", refused)
    assert (redis.zcard("notifier:backlog:{ann}:default"), redis.hgetall("notifier:waits")) == (0, {})
    assert redis.zscore("notifier:later", "rest") == worker.now + 19 * S, "it ends in time"
    assert redis.hget("notifier:leaders", "urgent") == str(worker.now + 19 * S).encode(), "whoever is idle then"
    rests: Any = list(redis.scan_iter("notifier:rests:*"))
    assert [redis.zrange(key, 0, -1) for key in rests] == [] if refused else [[b"rest"]]
    assert all(redis.ttl(key) > LEASE // S for key in rests)
    send(worker, "young")
    redis.hset("notifier:route:fcm", mapping={"probe": "1"})
    assert taken(worker) == (["young"] if refused else [])
