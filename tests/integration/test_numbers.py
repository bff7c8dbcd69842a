"""The numbers of the minutes against what the simulators saw, and what they cost."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier.cli.__main__ import main
from notifier.operations.stats import SAMPLED, LaneNow, Stats, read_now, read_stats
from notifier.queue import calls
from notifier.queue.backlogs import cancel
from notifier.queue.minutes import BOUNDS_S, Histogram, Numbers
from notifier.queue.retention import Retention
from notifier.rules.policies import Policies
from notifier.scripts.keys import job_key, rq_key
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, ends, fcm, note, notifier, worker, write_config
from tests.harness.take import take
from workers.sending.numbers import Numbers as Measuring


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators) -> Path:
    return write_config(tmp_path, redis_server.url, simulators.providers())


def test_they_are_what_the_simulators_saw(
    redis: Redis,
    config: Path,
    simulators: Simulators,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Accepted, by outcome, category and route, retried, lateness and latency: each equals what went over the wire."""
    gone = simulators.answer(apns("gone"), Reply(410, "Unregistered"))
    tried = simulators.answer(apns("tried"), Reply(400, "IdleTimeout", headers={"Retry-After": "0"}), Reply(200))
    slow = simulators.delay(apns("slow"), 300)
    ids = []
    with notifier(config) as producer, worker(config):
        ids += [producer.send(note(f"u{n}", f"numbers-{n}", category="chat")) for n in range(20)]
        ids += [producer.send(note(f"f{n}", f"numbers-f{n}", fcm(f"f{n}"))) for n in range(7)]
        ids += [
            producer.send(note(name, f"numbers-{name}", device)) for name, device in (("tried", tried), ("slow", slow))
        ]
        refused = producer.send(note("gone", "numbers-gone", gone))
        for job_id in ids:
            ends(producer, job_id, "delivered")
        ends(producer, refused, "rejected")
        numbers = read_stats(redis, 5).together
    assert numbers.accepted == {"chat": 20, "default": 10}
    assert numbers.ended == {
        ("delivered", "chat", "apns"): 20,
        ("delivered", "default", "fcm"): 7,
        ("delivered", "default", "apns"): 2,
        ("retried", "default", "apns"): 1,
        ("rejected", "default", "apns"): 1,
    }
    seen = Counter(a.platform for a in simulators.all() if (a.title or "").startswith("numbers-"))
    assert {by: each.counts.total() for by, each in numbers.answers.items()} == seen == {"apns": 24, "fcm": 7}
    assert sum(each.counts.total() for each in numbers.late.values()) == 31  # the retry among them
    assert numbers.answers["apns"].quantile_s(1) >= 0.3
    assert numbers.answers["apns"].sum_s >= 0.3
    monkeypatch.setattr(sys, "argv", ["notifier", "--config", str(config), "stats", "--json"])
    with pytest.raises(SystemExit):
        main()
    told = json.loads(capfd.readouterr().out)
    assert sum(each["accepted"] for each in told["minutes"]) == 30
    assert sum(each["ended"].get("delivered", 0) for each in told["minutes"]) == 29
    assert told["now"]["totals"]["delivered"] == 29
    monkeypatch.setattr(sys, "argv", ["notifier", "--config", str(config), "stats"])
    with pytest.raises(SystemExit):
        main()
    said = capfd.readouterr().out
    assert "routes: unknown: no worker works" in said
    assert "apns" in said


def commands(redis: Redis, verb: calls.Call) -> int:
    """How many commands a call makes inside its script."""

    def total() -> int:
        return sum(of["calls"] for name, of in redis.info("commandstats").items() if name != "cmdstat_info")

    redis.script_load(verb.script.source)
    before = total()
    run(redis, verb)
    return total() - before


def settle(job_ids: list[str], leased: list[calls.Leased], *measured: Any) -> calls.Call:
    of = {each.job_id: each for each in leased}
    done = [
        calls.Settlement(job, of[job].permit, of[job].user, of[job].category, True, "delivered", "delivered")
        for job in job_ids
    ]
    kept = Retention(10**9, 10**9, 10**9)
    told = calls.Measured(*measured) if measured else None
    return calls.settle(done, RuleTable(Policies()), calls.Worker(name="w", keep=kept), measured=told)


@pytest.fixture
def leased(redis: Redis) -> list[calls.Leased]:
    lanes, table = ("urgent", "default", "bulk"), RuleTable(Policies())
    jobs = [
        calls.Job(f"j{n}", "default", b"", json.dumps({"user": f"u{n}", "category": "default"}).encode(), None)
        for n in range(60)
    ]
    run(redis, calls.enqueue(jobs, dedupe_for_us=10**6, stamp="2026-01-01T00:00:00.000000Z"))
    return take(redis, calls.Worker(name="w", lanes=lanes, lease_us=10**8), calls.Room(100), table).leased


def test_they_cost_two_commands_a_call(redis: Redis, leased: list[calls.Leased]) -> None:
    """A settle call makes two commands more, whatever it counts; one more where it is the first of a minute."""
    job_ids = [each.job_id for each in leased]
    plain = commands(redis, settle(job_ids[:20], leased))
    labels = [f"chat|route{n % 5}" for n in range(20)]
    numbers = {f"late|chat|{n}": 1 for n in range(10)}
    assert commands(redis, settle(job_ids[20:40], leased, labels, numbers)) - plain in {2, 3}
    assert commands(redis, settle(job_ids[40:60], leased, labels, numbers)) - plain in {2, 3}
    assert run(redis, settle(job_ids[:20], leased, labels)) == [False] * 20  # settled before: counted once
    together = read_stats(redis, 3).together
    assert together.outcomes() == {"delivered": 40}
    for key in redis.keys("notifier:minute:*"):
        assert 3 * 86_400 - 60 < redis.ttl(key) <= 3 * 86_400


def test_what_is_cancelled_after_a_device_took_it_counts_as_delivered(redis: Redis, leased: list[calls.Leased]) -> None:
    """In its minute as in the totals: the other devices get it no more."""
    one, keep = leased[0], Retention(10**9, 10**9)
    rest = calls.Settlement(
        one.job_id, one.permit, one.user, one.category, True, "backlog", answered='{"0": "delivered"}'
    )
    assert run(redis, calls.settle([rest], RuleTable(Policies()), calls.Worker(name="w", keep=keep))) == [True]
    assert run(redis, cancel([one.job_id], keep)) == ["ended"]
    assert read_stats(redis, 2).together.ended == {("delivered", "default", ""): 1}


def test_what_was_cancelled_in_a_lane_without_workers_is_not_due(redis: Redis) -> None:
    """Its wake-up stands there until a worker comes by: nobody needs to start one for it."""
    redis.zadd("notifier:wakeups:bulk", {"ann": 1})
    assert read_now(redis).lanes["bulk"] == LaneNow(0, 0, 0, 0.0)
    redis.zadd("rq:scheduled:bulk", {"waits": 1})
    lane = read_now(redis).lanes["bulk"]
    assert (lane.due_users, lane.oldest_due_s > 1_700_000_000) == (1, True)


def test_some_of_many_that_have_a_time_of_their_own_stand_for_all(redis: Redis) -> None:
    """The numbers cost no more than those of a few; and what is told of the last look is as a worker wrote it."""
    redis.zadd("notifier:later", {f"job-{n}": 4_000_000_000_000_000 + n for n in range(2 * SAMPLED + 50)})
    redis.set("notifier:looked", 1_700_000_000_000_000)
    found = read_now(redis)
    assert [(each.kind, each.waiting) for each in found.waits] == [("send_at", 2 * SAMPLED + 50)]
    assert found.looked_us == 1_700_000_000_000_000


def test_a_histogram_bounds_what_it_holds() -> None:
    """Each bucket holds up to its bound, the last all the rest; a quantile is the bound of its bucket."""
    measured = Measuring()
    measured.late["chat"] += [-0.1, 0, 0.001, 0.001001, 0.002, 0.002001, 0.004, 10**6]
    taken = measured.take()
    assert taken == {
        "late|chat|0": 3,
        "late|chat|1": 2,
        "late|chat|2": 2,
        "late|chat|21": 1,
        "late|chat|s": 10**12 + 10_002,
    }
    assert not measured.take(), "it was taken"
    assert (BOUNDS_S[:3], len(BOUNDS_S)) == ([0.001, 0.002, 0.004], 21), "the last one has no bound"
    histogram = Histogram(Counter({0: 50, 3: 49, 9: 1}))
    assert (histogram.quantile_s(0.5), histogram.quantile_s(0.99), histogram.quantile_s(1)) == (0.001, 0.008, 0.512)
    assert Histogram().quantile_s(0.5) is None


def test_fields_of_others_are_passed_over(redis: Redis) -> None:
    """What an older or newer version wrote there does no harm."""
    numbers = Numbers()
    numbers.add({"x|y": 3, "late|chat|2": 2, "late|chat|s": 5000, "o|delivered|chat|": 1, "lonely": 1})
    assert numbers.ended == {("delivered", "chat", ""): 1}
    assert Stats(read_now(redis), {0: numbers}, numbers).as_json()["lateness"]["chat"]["p99"] == 0.004


def test_for_how_long_the_oldest_is_queued_is_told_by_redis_clock(redis: Redis) -> None:
    """`enqueued_at` is of the producer's host, whose clock may be wrong by hours; a history notes Redis's time."""
    redis.rpush(rq_key("queue", "default"), "job")
    seconds, us = redis.time()  # type: ignore[misc]
    told = {"enqueued_at": "2020-01-01T00:00:00.000000Z", "push_history": (seconds - 90) * 1_000_000 + us}
    redis.hset(job_key("job"), mapping=told)
    assert 80 < read_now(redis).lanes["default"].oldest_queued_s < 1000


def test_an_id_of_a_forgotten_user_hides_no_oldest(redis: Redis) -> None:
    """It stands in its queue until a worker passes over it, and tells no time."""
    redis.rpush(rq_key("queue", "bulk"), "forgotten", "first", "second")
    seconds, us = redis.time()
    for job_id, ago in (("first", 90), ("second", 5)):
        redis.hset(job_key(job_id), "push_history", (seconds - ago) * 1_000_000 + us)
    lanes = read_now(redis).lanes
    assert 80 < lanes["bulk"].oldest_queued_s < 1000
    assert lanes["urgent"].oldest_queued_s == 0
