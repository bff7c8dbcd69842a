"""Law 4: notifications for the same moment go in the order in which they were accepted."""

import json
import random
from collections.abc import Sequence

import pytest
from redis import Redis

from notifier.queue import backlogs, calls
from notifier.queue.calls import Job
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable

S = 1_000_000
NOW = 1_700_000_000 * S
AT = NOW + 60 * S
RULES = RuleTable(Policies())


def ids(count: int) -> list[str]:
    """Names in no order."""
    return [f"{random.Random(n).randrange(16**8):08x}" for n in range(count)]


def accept(redis: Redis, names: Sequence[str], at_us: int = AT, now: int = NOW) -> None:
    meta = json.dumps({"user": "ann", "category": "default"}).encode()
    jobs = [Job(name, "default", b"data", meta, send_at_us=at_us) for name in names]
    run(redis, calls.enqueue(jobs, dedupe_for_us=S, stamp="", clock=str(now)))


def sent(redis: Redis, now: int, most: int) -> list[str]:
    """All that goes at that time, in order, by workers that take so many at a look."""
    found: list[str] = []
    for n in range(1_000):
        worker = f"w{n % 3}"
        caller = calls.Worker(name=worker, lanes=LANES, lease_us=30 * S, clock=str(now))
        leased = run(redis, calls.pull(caller, calls.Room(most), RULES)).leased
        if not leased:
            return found
        found += [one.job_id for one in leased]
        done = [
            calls.Settlement(one.job_id, one.permit, one.user, one.category, reached=True, state="delivered")
            for one in leased
        ]
        keep = Retention(S, S, S)
        run(redis, calls.settle(done, RULES, calls.Worker(name=worker, keep=keep, clock=str(now))))
    raise AssertionError("it comes to no end")


@pytest.mark.parametrize("most", [4, 50])
@pytest.mark.parametrize("at_a_call", [1, 8, 60])
def test_one_moment_has_the_order_of_acceptance(redis: Redis, most: int, at_a_call: int) -> None:
    """Sixty of one user for one moment, accepted in one call or many, taken in small looks or large."""
    names = ids(60)
    for start in range(0, len(names), at_a_call):
        accept(redis, names[start : start + at_a_call], now=NOW + start)
    assert sent(redis, AT + S, most) == names


def test_the_order_outlasts_others_and_what_was_cancelled(redis: Redis) -> None:
    """Others have the same moment too, and some of these are cancelled before more are accepted."""
    first, others, last = ids(30), [f"other{name}" for name in ids(20)], [f"0{name}" for name in ids(10)]
    accept(redis, first[:20])
    accept(redis, others, at_us=AT + 5)
    accept(redis, first[20:])
    for name in first[::3]:
        assert run(redis, backlogs.cancel([name], Retention(S), clock=str(NOW))) == ["cancelled"]
    accept(redis, last, now=NOW + S)
    mine = [name for name in sent(redis, AT + S, 7) if name not in others]
    assert mine == [name for n, name in enumerate(first) if n % 3] + last


def test_none_goes_before_its_moment_and_what_is_over_is_forgotten(redis: Redis) -> None:
    """Nothing goes early; and Redis does not remember moments that are over."""
    for n in range(20):
        accept(redis, [f"job{n}"], at_us=NOW + 1 + n)
    assert sent(redis, NOW, 50) == []
    for n in range(20):
        accept(redis, [f"more{n}"], at_us=AT + S * n, now=NOW + S)
    run(redis, backlogs.sweep(LANES, Retention(S, S, S), lease_us=30 * S, clock=str(NOW + S)))
    assert {int(float(at)) for at in redis.zrange("notifier:same_time", 0, -1)} == {AT + S * n for n in range(20)}
