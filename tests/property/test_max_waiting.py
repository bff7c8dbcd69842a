"""max_waiting and overflow: the Lua against what stands in the queues and backlogs."""

import json
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.queue import calls
from notifier.queue.calls import Job
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from tests.property.amount import examples
from tests.property.test_backlogs import CATEGORIES, blocked, carry_out, drain, policies, schedules
from tests.property.world import S, World

ENDS = ("delivered", "failed", "expired", "cancelled", "superseded", "dropped")
overflows = st.sampled_from(["reject", "drop_oldest", "collapse"])


@st.composite
def rule_sets(draw: st.DrawFn) -> Policies:
    """Every category has an overflow of its own."""
    categories = {
        name: Category(name, policy=draw(policies), when_blocked=draw(blocked), overflow=draw(overflows))
        for name in sorted(CATEGORIES)
    }
    return Policies(draw(policies), categories=categories)


def waiting(world: World) -> Counter[str]:
    """How many of each user's stand in queues and backlogs."""
    return Counter(told.user for job_id, told in world.told.items() if world.states[job_id] in {"queue", "backlog"})


@given(rule_sets(), schedules, st.tuples(st.integers(1, 20), st.integers(1, 6)))
@settings(max_examples=examples(60))
def test_no_more_wait_than_may(
    redis: Redis, rules: Policies, schedule: list[tuple[Any, ...]], most: tuple[int, int]
) -> None:
    """No enqueue lets more wait than may, in all and of a user; law 2: what makes room ends once, like all the others.

    What comes back from a worker may stand above the limits: it was accepted before.
    """
    world = World(redis, rules, max_waiting=most)
    for verb, *args in schedule:
        before = waiting(world)
        carry_out(world, verb, args)
        world.check()
        if verb == "enqueue":
            after = waiting(world)
            assert after.total() <= max(before.total(), most[0])
            assert all(n <= max(before[user], most[1]) for user, n in after.items())
    drain(world)
    world.check()
    assert sum(world.ended[word] for word in ENDS) == len(world.told)


def test_those_of_next_week_do_not_hide_who_is_gone(redis: Redis) -> None:
    """Whom RQ cancelled in the queue is no longer counted, however many wait for times of their own."""
    world = World(redis, Policies(), max_waiting=(200, 60))
    for _ in range(50):
        world.enqueue("ann", "chat", "urgent", send_in_us=7 * 86_400 * S)
    gone = [world.enqueue("ann", "chat", "urgent") for _ in range(10)]
    for job_id in gone:
        redis.lrem("rq:queue:urgent", 1, job_id)
        redis.hset(f"rq:job:{job_id}", "status", "canceled")
    meta = json.dumps({"user": "ann", "category": "chat"}).encode()
    job = Job("another", "urgent", b"data", meta, overflow="reject", max_waiting=60)
    call = calls.enqueue([job], dedupe_for_us=S, stamp="", clock=str(world.now))
    assert run(redis, call) == ["another"]
