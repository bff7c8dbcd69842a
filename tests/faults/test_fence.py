"""Law 2: a worker that was taken for dead, and was not, changes nothing any more when it settles."""

from dataclasses import replace

import pytest
from redis import Redis

from notifier import Device, Notification, Notifier
from notifier.queue import calls
from notifier.queue.calls import DeadToken, Settlement, State
from notifier.queue.retention import Retention
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings

SETTINGS = parse_settings("{user: {windows: [10/1m]}, providers: {fcm: {client: console}}}")
RULES = RuleTable(SETTINGS.policies())
LANES = ("urgent", "default", "bulk")
LEASE_US = 10_000_000


def lease(redis: Redis, worker: str, clock_us: int) -> calls.Leased:
    """What a worker at that time takes: the one notification there is."""
    (leased,) = pull(redis, worker, clock_us).leased
    return leased


def pull(redis: Redis, worker: str, clock_us: int) -> calls.Pulled:
    caller = calls.Worker(name=worker, lanes=LANES, lease_us=LEASE_US, clock=str(clock_us))
    return run(redis, calls.pull(caller, calls.Room(10), RULES))


def put_back(redis: Redis, worker: str, clock_us: int) -> None:
    """What was in flight with a worker that is taken for dead goes back, as its provider has read all by then."""
    (orphan,) = pull(redis, worker, clock_us).orphans
    assert settle(redis, orphan, worker, "backlog", clock_us)


def settle(redis: Redis, leased: calls.Leased, worker: str, state: State, clock_us: int) -> bool:
    """Whether it was still this worker's to settle."""
    settlement = Settlement(
        job_id=leased.job_id,
        permit=leased.permit,
        user=leased.user,
        category=leased.category,
        reached=True,
        state=state,
        word="" if state == "backlog" else state,
        detail=1 if state == "later" else "",
        gone=(DeadToken(Device("fcm", "x" * 40), None, "UNREGISTERED"),) if state != "backlog" else (),
    )
    call = calls.settle(
        [settlement], RULES, calls.Worker(name=worker, keep=Retention(10**9, 10**9, 10**9), clock=str(clock_us))
    )
    return run(redis, call)[0]


@pytest.mark.parametrize("late_state", ["delivered", "failed", "later"])
@pytest.mark.parametrize("first_state", ["delivered", "failed", "later"])
def test_a_late_settlement_is_refused(redis: Redis, first_state: State, late_state: State) -> None:
    """Whatever became of it under its second worker: the first one's answer comes too late and is not counted."""
    notifier = Notifier(redis, SETTINGS)
    job_id = notifier.send(Notification(user="ada", devices=[Device("fcm", "x" * 40)], title="hi"))
    seconds, micros = redis.time()
    now_us = seconds * 1_000_000 + micros
    stalled = lease(redis, "stalled", now_us)
    # The permit of the first counts as sent when it is put back; one minute of ten leaves room.
    put_back(redis, "second", now_us + LEASE_US)
    second = lease(redis, "second", now_us + LEASE_US + 1)

    assert second.job_id == stalled.job_id == job_id
    assert settle(redis, second, "second", first_state, now_us + LEASE_US + 2)

    def standing() -> object:
        status = notifier.status(job_id)
        assert status is not None
        return redis.hgetall("notifier:stats"), replace(status, record=None)  # what waits has a record as of now

    before = standing()
    assert not settle(redis, stalled, "stalled", late_state, now_us + LEASE_US + 3)
    assert standing() == before
    assert redis.xlen("notifier:feedback") == 1
