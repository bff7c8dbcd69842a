"""The circuit of a route: who opens it, who may probe, who closes it, and whose word is no longer taken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from redis import Redis

from notifier.limiter import MemoryLimiter, MemoryLines, lines
from notifier.limiter.routes import Seen, circuit, read_routes
from notifier.limiter.scripts import run
from notifier.policies import Policies

S = 1_000_000
START = 1_700_000_000 * S
LANES = ("default",)


class Two:
    """Redis and its twin, told the same at the same time."""

    def __init__(self, redis: Redis) -> None:
        self.now = START
        redis.flushdb()
        self.redis = redis
        self.memory = MemoryLines(Policies(), MemoryLimiter(lambda: self.now))

    def tell(self, worker: str, seen: Seen) -> str:
        call = circuit(worker, "apns", seen, reason="Refused", first_us=S, most_us=4 * S, clock=str(self.now))
        said = run(self.redis, call)
        assert said == self.memory.circuit(worker, "apns", seen, first_us=S, most_us=4 * S)
        return said

    def next_probe(self, worker: str) -> int | None:
        """In how many µs this worker would let a probe go."""
        call = lines.pull(most=9, lease_us=9 * S, on_watch=False, lanes=LANES, worker=worker, clock=str(self.now))
        pulled = run(self.redis, call)
        assert pulled == self.memory.pull(most=9, lease_us=9 * S, lanes=LANES, worker=worker)
        return None if pulled.next_us is None else pulled.next_us - self.now


@pytest.fixture
def two(redis: Redis) -> Two:
    return Two(redis)


def test_the_first_opens_it_and_the_rest_are_silent(two: Two) -> None:
    """One transition, one telling, however many workers fail and however often; so it is with closing."""
    assert [two.tell(worker, "down") for worker in "vwwx"] == ["opened", "", "", ""]
    assert [two.tell(worker, "up") for worker in "vwx"] == ["closed", "", ""]
    assert two.redis.smembers("notifier:routes") == set()


def test_one_that_had_no_trouble_probes_first(two: Two) -> None:
    """Who failed waits its second; who did not may try after a fifth of one."""
    two.tell("w", "down")
    assert two.next_probe("w") == S
    assert two.next_probe("v") == S // 5


def test_a_worker_with_a_broken_network_is_left_alone(two: Two) -> None:
    """Proved wrong by another that gets through, it holds nothing any more, until it gets through itself."""
    two.tell("w", "down")
    two.tell("v", "up")
    two.now += S
    assert two.tell("w", "down") == "alone"
    assert two.redis.smembers("notifier:routes") == set()
    two.now += 6 * S
    assert two.tell("w", "down") == "opened", "nobody else has got through for long"
    two.tell("v", "up")
    two.tell("w", "up")
    assert two.tell("w", "down") == "opened", "it is believed again"


def test_a_new_worker_is_let_try_at_once(two: Two) -> None:
    """A restart may have mended it: the next may go, whatever the wait was."""
    two.tell("w", "down")
    assert two.tell("w", "retry") == ""
    assert two.next_probe("w") is None, "it needs no letting go"
    assert two.redis.hget("notifier:route:apns", "probe") == b"1"


def test_what_is_held_can_be_read(two: Two) -> None:
    """For people: which route, since when and why, when the next probe is, how many wait."""
    assert read_routes(two.redis) == []
    two.tell("w", "down")
    two.redis.zadd("notifier:parked:apns", {"udefault ann": 1})
    (held,) = read_routes(two.redis)
    at = datetime.fromtimestamp(START / S, tz=UTC)
    assert (held.route, held.state, held.kind, held.reason) == ("apns", "open", "unreachable", "Refused")
    assert (held.since, held.waiting) == (at, 1)
    assert (held.next_at - at).total_seconds() == 1.0


def test_probes_come_to_nothing_ever_more_slowly(redis: Redis) -> None:
    """The wait grows by a half with each vain probe, up to the most; other workers' failures change nothing."""
    two = Two(redis)
    waits: list[Any] = []
    two.tell("w", "down")
    for _ in range(4):
        redis.hset("notifier:route:apns", "prober", "w")
        two.memory._routes.holds["apns"].prober = "w"
        two.tell("v", "down")
        two.tell("w", "down")
        waits.append(two.next_probe("w"))
    assert waits == [1_500_000, 2_250_000, 3_375_000, 4 * S]


def test_the_last_prober_lets_the_others_go_first(redis: Redis) -> None:
    """One whose network is broken does not keep the others from probing, though it is always the first to wake."""
    two = Two(redis)
    two.tell("w", "down")
    two.tell("v", "down")
    redis.hset("notifier:route:apns", "prober", "w")
    two.memory._routes.holds["apns"].prober = "w"
    two.tell("w", "down")
    assert two.next_probe("w") == two.next_probe("v") == 1_500_000, "there is no other worker"
    redis.sadd("rq:workers", "rq:worker:w", "rq:worker:v")
    call = lines.pull(most=9, lease_us=9 * S, on_watch=False, lanes=LANES, worker="w", clock=str(two.now))
    assert run(redis, call).next_us == two.now + 1_500_000 + 1_200_000
    assert two.next_probe("v") == 1_500_000
