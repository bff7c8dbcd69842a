"""Law 7: a call by older rules that comes late, after newer ones were taken up, holds nobody back by them for long."""

import json

import pytest
from redis import Redis

from notifier.queue import backlogs, calls, leaders
from notifier.queue.calls import Job, Settlement
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.scripts.loader import Call, run
from notifier.scripts.rule_table import RuleTable

S = 1_000_000
HOUR = 3_600 * S
NOW = 1_700_000_000 * S
OLD = RuleTable(Policies(Policy((Window(1, interval_us=HOUR),))), version="old")
NEW = RuleTable(Policies(Policy((Window(1, interval_us=S),))), version="new")


def follow(redis: Redis, version: str, at: int) -> bool:
    """Whether all wake-ups are to be looked at again."""
    since, walked = run(redis, leaders.follow(version, clock=str(at)))
    return walked < since


def walk(redis: Redis, at: int) -> None:
    """Every wake-up is looked at again, as a worker has it done that has taken up new rules."""
    for lane in LANES:
        assert run(redis, backlogs.retime(lane, "0", max_users=100, clock=str(at))) == "0"


def wake_up(redis: Redis) -> int:
    at = redis.zscore("notifier:wakeups:default", "ann")
    assert at is not None
    return int(at)


def pull(rules: RuleTable, at: int) -> Call[calls.Pulled]:
    worker = calls.Worker(name="w", lanes=LANES, lease_us=30 * S, clock=str(at))
    return calls.pull(worker, calls.Room(9), rules)


def settle(leased: calls.Leased, rules: RuleTable, at: int) -> Call[list[bool]]:
    done = Settlement(leased.job_id, leased.permit, "ann", "default", reached=True, state="delivered")
    return calls.settle([done], rules, calls.Worker(name="w", keep=Retention(S, S, S), clock=str(at)))


def backlog(redis: Redis) -> calls.Leased:
    """Some of ann's wait by the old rules behind one in flight."""
    follow(redis, "old", NOW)
    jobs = [
        Job(f"job{n}", "default", b"data", json.dumps({"user": "ann", "category": "default"}).encode())
        for n in range(5)
    ]
    run(redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(NOW)))
    (leased,) = run(redis, pull(OLD, NOW)).leased
    return leased


@pytest.mark.parametrize("late_us", [10, 2_500_000, 60 * S])
def test_a_late_pull_is_looked_at_again_soon(redis: Redis, late_us: int) -> None:
    """A *pull* by 1/1h that Redis runs after all have gone over to 1/1s holds the user a second, not an hour."""
    run(redis, settle(backlog(redis), OLD, NOW))
    assert wake_up(redis) == NOW + HOUR
    changed = NOW + 100
    assert follow(redis, "new", changed)
    walk(redis, changed)
    assert wake_up(redis) == changed
    run(redis, pull(OLD, changed + late_us))
    assert wake_up(redis) <= changed + late_us + max(S, late_us)
    assert len(run(redis, pull(NEW, wake_up(redis))).leased) == 1


def test_a_late_settle_is_looked_at_again_soon(redis: Redis) -> None:
    """The same where what comes late is the end of a send."""
    leased = backlog(redis)
    changed = NOW + 100
    follow(redis, "new", changed)
    walk(redis, changed)
    assert run(redis, settle(leased, OLD, changed + S)) == [True]
    assert wake_up(redis) <= changed + 2 * S
    assert len(run(redis, pull(NEW, wake_up(redis))).leased) == 1


def test_the_newest_rules_set_exact_wake_ups(redis: Redis) -> None:
    """Those who follow what was taken up last wait as long as it says, and so do calls that name no version."""
    leased = backlog(redis)
    run(redis, settle(leased, OLD, NOW))
    assert wake_up(redis) == NOW + HOUR
    assert follow(redis, "new", NOW)
    assert follow(redis, "new", NOW + S), "nobody has walked over the wake-ups yet"
    redis.hset("notifier:leaders", "#walked", str(redis.hget("notifier:leaders", "#since"), "ascii"))
    assert not follow(redis, "new", NOW + S)
    walk(redis, NOW)
    run(redis, pull(RuleTable(Policies(Policy((Window(1, interval_us=HOUR),)))), NOW))
    assert wake_up(redis) == NOW + HOUR


def test_hosts_that_follow_different_files_for_long_cost_a_few_looks(redis: Redis) -> None:
    """Where one host's worker stays with its own rules, its looks thin out: a score for a wait of a whole hour."""
    leased = backlog(redis)
    follow(redis, "new", NOW)
    run(redis, settle(leased, OLD, NOW))
    looks, now = 0, NOW
    while now < NOW + HOUR:
        now = wake_up(redis)
        assert now > NOW
        looks += 1
        if run(redis, pull(OLD, now)).leased:
            break
    assert now == NOW + HOUR
    assert looks <= 20
