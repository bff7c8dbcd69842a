"""Law 1 across a move: what was sent in a category that nobody has configured counts on the new shard too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from notifier import Hold, Permit, Policy, Window
from notifier.dispatch import calls
from notifier.limiter import RedisLimiter
from notifier.rules.policies import Rules
from notifier.rules.policy import Burst, Category
from notifier.scripts.loader import run
from notifier.shards.migration.user_state import State
from notifier.testing.embedded import EmbeddedRedis
from tests.contract.test_moving import Pair, pull, servers  # noqa: F401 - servers is a fixture
from tests.support import note

HOUR_US = 3_600_000_000
KINDS = {
    "window": Policy((Window(2, interval_us=HOUR_US),)),
    "gap": Policy(gap_us=HOUR_US),
    "buckets": Policy((Window(2, interval_us=HOUR_US, precision_us=300_000_000),)),
    "burst": Policy(burst=Burst(2, every_us=HOUR_US)),
}


def invented(policy: Policy) -> Rules:
    """The rules of a caller of the library, for a category that stands in no file."""
    return Rules(Policy(), Category("invented", policy=policy))


@pytest.fixture
def pair(servers: tuple[EmbeddedRedis, EmbeddedRedis]) -> Iterator[Pair]:  # noqa: F811 - the fixture
    with closing(Pair(*servers)) as made:
        yield made


def exhaust(redis: Any, user: str, rules: Rules) -> None:
    """Send as much as the rules allow now."""
    while isinstance(RedisLimiter(redis).acquire(user, rules), Permit):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sent_still_counts(pair: Pair, kind: str) -> None:
    """However it is counted: who was full before the move is full after it, and another is not."""
    (user, other, _), rules = pair.users, invented(KINDS[kind])
    exhaust(pair.old, user, rules)
    pair.mover().run()
    assert isinstance(RedisLimiter(pair.new).acquire(user, rules), Hold)
    assert isinstance(RedisLimiter(pair.new).acquire(other, rules), Permit)
    assert not pair.old.keys("notifier:*invented*")


@pytest.mark.parametrize("kind", KINDS)
def test_what_turns_up_late_counts_as_well(pair: Pair, kind: str) -> None:
    """A send that was counted on the old shard after its user had been copied comes after."""
    user, rules = pair.users[0], invented(KINDS[kind])
    state = State(pair.old, pair.new, user)
    state.copy(["default"])
    exhaust(pair.old, user, rules)
    state.add(["invented"])
    assert isinstance(RedisLimiter(pair.new).acquire(user, rules), Hold)


def test_a_backlog_of_a_category_that_left_the_configuration_comes_with_its_sends(pair: Pair) -> None:
    """Its line stands, its rules are somebody else's by now: nothing is forgotten of either."""
    user, rules = pair.users[0], invented(KINDS["window"])
    exhaust(pair.old, user, rules)
    meta = json.dumps({"user": user, "category": "invented"}).encode()
    job = calls.Job("left", "bulk", b"x", meta)
    assert run(pair.old, calls.enqueue([job], dedupe_for_us=1, timeout_s=60, stamp="")) == ["left"]
    pull(pair.old)
    assert pair.old.zcard(f"notifier:line:{{{user}}}:invented") == 1
    pair.mover().run()
    pull(pair.new)
    assert pair.new.zcard(f"notifier:line:{{{user}}}:invented") == 1
    assert isinstance(RedisLimiter(pair.new).acquire(user, rules), Hold)


@pytest.mark.parametrize("high", [False, True])
def test_drop_oldest_drops_the_oldest_after_a_move(pair: Pair, *, high: bool) -> None:
    """What came along stands before what arrived since, and is the first to give way; a high priority is no age."""
    user = pair.users[0]
    for title in ("came first", "came second"):
        pair.producer.send(note(user, title))
    if high:
        pair.producer.send(note(user, "high", priority="high"))
    pull(pair.old)
    pair.mover().run()
    pair.producer.send(note(user, "newest"))
    pull(pair.new)
    meta = json.dumps({"user": user}).encode()
    waiting = len(pair.waiting(pair.new, user))
    job = calls.Job("over", "default", b"x", meta, overflow="drop_oldest", max_waiting=waiting)
    run(pair.new, calls.enqueue([job], dedupe_for_us=1, timeout_s=60, stamp="", keep_failed_us=HOUR_US))
    assert pair.waiting(pair.new, user) == ["high"] * high + ["came second", "newest"]
