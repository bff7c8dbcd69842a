"""No script holds Redis for long: what one run of it does is bounded, however much waits, falls due or was lost."""

import json
from collections.abc import Sequence
from typing import Any

from redis import Redis

from notifier.queue import backlogs, calls
from notifier.queue.backlogs import SWEPT_AT_ONCE
from notifier.queue.calls import Job
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst, Policy
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from tests.harness.take import direct_way_shut, publish_own_rules
from workers.served import SWEEPS

S = 1_000_000
BATCH = 50
LEASE_US = 10 * S
RULES = RuleTable(Policies(Policy(gap_us=3_600 * S)))


def enqueue(redis: Redis, users: Sequence[str], *, each: int, name: str, send_at_us: int | None = None) -> None:
    """So many for each user, in turns."""
    metas = {user: json.dumps({"user": user, "category": "default"}).encode() for user in users}
    jobs = [
        Job(f"{name}-{user}-{n}", "default", b"data", metas[user], send_at_us=send_at_us)
        for n in range(each)
        for user in users
    ]
    for start in range(0, len(jobs), 500):
        call = calls.enqueue(jobs[start : start + 500], dedupe_for_us=S, stamp="", clock="0")
        run(redis, call)


def pull(redis: Redis, now: int, rules: RuleTable = RULES, most: int = BATCH) -> calls.Pulled:
    """One look at that time."""
    worker = calls.Worker(name="w", lanes=LANES, lease_us=LEASE_US, clock=str(now))
    return run(redis, calls.pull(worker, calls.Room(most), rules))


def to_be_told(policy: Policy) -> RuleTable:
    """Rules of which Redis does not know who has others: all enter their backlogs, and go once that is published."""
    return RuleTable(Policies(policy, users={"somebody": Policy()}))


def entered(redis: Redis) -> int:
    """How many stand in backlogs."""
    return sum(redis.zcard(key) for key in redis.scan_iter("notifier:backlog:*"))


def test_what_visits_do_is_bounded_by_their_batch(redis: Redis) -> None:
    """A batch of users costs no more commands where each has a long backlog behind the head that goes."""
    users = [f"u{n}" for n in range(BATCH)]
    enqueue(redis, users, each=60, name="job")
    rules = to_be_told(Policy(gap_us=3_600 * S))
    while pull(redis, 0, rules).taken:
        pass
    assert redis.zcount("notifier:wakeups:default", "-inf", 0) == BATCH
    publish_own_rules(redis, rules)
    redis.config_resetstat()
    with direct_way_shut():
        assert len(pull(redis, 0, rules).leased) == BATCH
    ran: Any = redis.info("commandstats")
    assert entered(redis) == BATCH * 59
    assert sum(entry["calls"] for entry in ran.values()) <= BATCH * 30


def test_a_head_under_a_burst_costs_the_same_whatever_was_sent(redis: Redis) -> None:
    """What is in flight is not read again for each head: a head asks once for what is over, and finds nothing."""
    enqueue(redis, ["ann"], each=60, name="job")
    rules = to_be_told(Policy(burst=Burst(100, every_us=S)))
    pull(redis, S, rules, most=60)
    publish_own_rules(redis, rules)
    for _ in range(2):
        redis.config_resetstat()
        redis.zadd("notifier:wakeups:default", {"ann": S})
        pulled = pull(redis, S, rules)
        assert len(pulled.leased) == BATCH // 2
        ran: Any = redis.info("commandstats")
        assert ran["cmdstat_zrevrangebyscore"]["calls"] <= BATCH // 2
        assert redis.hlen("notifier:burst:{ann}") == 0, "nothing of it is over"


def test_what_pull_moves_is_bounded_and_nobody_starves(redis: Redis) -> None:
    """The dead first, then what falls due and what arrives share a look's room; look by look all of it is moved."""
    dead = [f"dead{n}" for n in range(3 * BATCH)]
    enqueue(redis, dead, each=1, name="dead")
    while pull(redis, 0).leased:
        pass
    assert redis.zcard("notifier:leases") == len(dead)
    enqueue(redis, [f"later{n}" for n in range(3 * BATCH)], each=1, name="later", send_at_us=S)
    enqueue(redis, [f"new{n}" for n in range(3 * BATCH)], each=1, name="new")
    now, looks, orphans, leased = 2 * LEASE_US, 0, 0, 0
    while (before := entered(redis) + leased) < 6 * BATCH:
        pulled = pull(redis, now)
        looks += 1
        orphans += len(pulled.orphans)
        leased += len(pulled.leased)
        moved = entered(redis) + leased - before + len(pulled.orphans)
        assert 0 < moved <= BATCH + len(LANES)
        if orphans < len(dead):
            assert pulled.leased == [], "nobody goes past the dead"
        else:
            assert pulled.taken >= BATCH // 5 or pulled.orphans
    assert orphans == len(dead)
    assert looks <= 12


def test_a_retry_does_not_wait_behind_what_was_to_go_at_one_moment(redis: Redis) -> None:
    """It has its place in its backlog, so it falls due whatever fell due before it; the others come in order."""
    enqueue(redis, ["ann"], each=1, name="urgent")
    (leased,) = pull(redis, 0).leased
    again = calls.Settlement(leased.job_id, leased.permit, "ann", "default", False, "later", "retried", 2 * S)
    assert run(redis, calls.settle([again], RULES, calls.Worker(name="w", clock="0"))) == [True]
    moment = [f"bulk{n}" for n in range(20 * BATCH)]
    enqueue(redis, moment, each=1, name="bulk", send_at_us=S)
    pulled = pull(redis, 3 * S)
    assert [one.user for one in pulled.leased].count("ann") == 1
    assert len(pulled.leased) <= BATCH
    assert redis.zrange("notifier:later", 0, -1)[0] == f"bulk-bulk{len(pulled.leased) - 1}-0".encode()


def test_thousands_of_retries_leave_half_of_a_look_to_what_is_new(redis: Redis) -> None:
    """Those that fell due last are looked for as well, and yet all of them together get one half."""
    enqueue(redis, [f"again{n}" for n in range(3 * BATCH)], each=1, name="again")
    worker = calls.Worker(name="w", clock="0")
    for _ in range(3):
        again = [
            calls.Settlement(one.job_id, one.permit, one.user, "default", False, "later", "retried", 2 * S)
            for one in pull(redis, 0).leased
        ]
        assert all(run(redis, calls.settle(again, RULES, worker)))
    enqueue(redis, [f"new{n}" for n in range(BATCH)], each=1, name="new")
    assert pull(redis, 3 * S).taken == BATCH // 2
    assert redis.zcard("notifier:later") == 3 * BATCH - BATCH // 2


def test_a_registry_is_cleared_little_by_little(redis: Redis) -> None:
    """What has lapsed in RQ's registry of the cancelled is not taken out by one sweep; but a worker sweeps again."""
    redis.zadd("rq:canceled:default", {f"old{n}": 0 for n in range(300)})
    sweep = backlogs.sweep(LANES, Retention(S), lease_us=LEASE_US, clock=str(10 * S))
    assert [run(redis, sweep)[0] for _ in range(3)] == [SWEPT_AT_ONCE, SWEPT_AT_ONCE, 50]
    assert not redis.exists("rq:canceled:default")


def test_leases_from_before_a_step_of_the_clock_are_shortened_in_one_beat(redis: Redis) -> None:
    """However many are in flight: a worker sweeps again at once while a sweep found so many, up to ten times a beat."""
    redis.zadd("notifier:leases", {f"job{n}": 3_600 * S for n in range(10_000)})
    sweep = backlogs.sweep(LANES, Retention(S), lease_us=LEASE_US, clock="0")
    swept = [run(redis, sweep)[0] for _ in range(SWEEPS)]
    assert min(swept) >= SWEPT_AT_ONCE
    assert redis.zcount("notifier:leases", LEASE_US, LEASE_US) == 10_000
    assert run(redis, sweep)[0] == 0
