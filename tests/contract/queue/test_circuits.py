"""The circuit of a route: who opens it, who may probe, who closes it, and whose word is no longer taken."""

from datetime import UTC, datetime
from typing import Any

import pytest
from redis import Redis

from notifier.queue import calls
from notifier.queue.circuits import circuit, find_routes
from notifier.rules.policies import Policies
from notifier.scripts.loader import run
from notifier.scripts.records import CircuitFields
from notifier.scripts.rule_table import RuleTable
from notifier.store.exchange import exchange

S = 1_000_000
START = 1_700_000_000 * S
LANES = ("default",)
RULES = RuleTable(Policies())


class Told:
    """Redis, told what workers see of a route."""

    def __init__(self, redis: Redis) -> None:
        self.now = START
        redis.flushdb()
        self.redis = redis

    def tell(self, worker: str, seen: str, kind: str = "unreachable") -> str:
        probe = {"kind": kind, "first_us": S, "max_us": 4 * S}
        call = circuit(CircuitFields(str(self.now), worker, "apns", seen, "Refused", **probe))
        return run(self.redis, call)

    def next_probe(self, worker: str) -> int | None:
        """In how many µs this worker would let a probe go."""
        caller = calls.Worker(name=worker, lanes=LANES, lease_us=9 * S, clock=str(self.now))
        pulled = run(self.redis, calls.pull(caller, calls.Room(9), RULES))
        return None if pulled.next_us is None else pulled.next_us - self.now


@pytest.fixture
def told(redis: Redis) -> Told:
    return Told(redis)


def test_the_first_opens_it_and_the_rest_are_silent(told: Told) -> None:
    """One transition, one telling, however many workers fail and however often; so it is with closing."""
    assert [told.tell(worker, "down") for worker in "vwwx"] == ["opened", "", "", ""]
    assert [told.tell(worker, "up") for worker in "vwx"] == ["closed", "", ""]
    assert told.redis.smembers("notifier:routes") == set()


def test_workers_that_have_gone_are_forgotten(told: Told) -> None:
    """Each start of a worker has its own name: who got through is kept for as long as it counts, and no longer."""
    for n in range(300):
        told.tell(f"worker-{n}", "up")
        told.now += S
    assert told.redis.zcard("notifier:reached:apns") == 5
    assert told.tell("w", "down") == "opened"


def test_only_a_person_ends_a_pause(told: Told) -> None:
    """What was under way when the route was stopped may still fail or arrive; and nobody resumes an open circuit."""
    assert told.tell("anna", "pause") == "paused"
    assert [told.tell("w", seen) for seen in ("down", "up", "next", "retry")] == [""] * 4
    assert told.redis.hget("notifier:route:apns", "state") == b"paused"
    assert [told.tell("anna", "resume") for _ in range(2)] == ["resumed", ""]
    assert [told.tell(*both) for both in (("w", "down"), ("anna", "resume"))] == ["opened", ""]
    assert told.redis.hget("notifier:route:apns", "state") == b"open"


def test_one_that_had_no_trouble_probes_first(told: Told) -> None:
    """Who failed waits its second; who did not may try after a fifth of one."""
    told.tell("w", "down")
    assert told.next_probe("w") == S
    assert told.next_probe("v") == S // 5


def test_a_worker_with_a_broken_network_is_left_alone(told: Told) -> None:
    """Proved wrong by another that gets through, it holds nothing any more, until it gets through itself."""
    told.tell("w", "down")
    told.tell("v", "up")
    told.now += S
    assert told.tell("w", "down") == "alone"
    assert told.redis.smembers("notifier:routes") == set()
    told.now += 6 * S
    assert told.tell("w", "down") == "opened", "nobody else has got through for long"
    told.tell("v", "up")
    told.tell("w", "up")
    assert told.tell("w", "down") == "opened", "it is believed again"


def test_a_new_worker_is_let_try_at_once(told: Told) -> None:
    """A restart may have mended it: the next may go, whatever the wait was."""
    told.tell("w", "down")
    assert told.tell("w", "retry") == ""
    told.next_probe("v")
    assert told.redis.hget("notifier:route:apns", "probe") == b"", "not by another, who may have the old key still"
    assert told.next_probe("w") is None, "it needs no letting go"
    assert told.redis.hget("notifier:route:apns", "probe") == b"1"


def test_who_may_have_mended_it_probes_before_who_had_trouble(told: Told) -> None:
    """Else a leader that still has the old key would take the probe, and the route would stay closed for longer."""
    for worker in "vw":
        told.tell(worker, "down")
    told.redis.zadd("notifier:waiting_for_route:apns", {"jnone": 1, "jneither": 2})
    assert told.tell("v", "retry") == ""
    assert [told.next_probe(worker) for worker in "wx"] == [S, S]
    assert told.next_probe("v") == S // 4, "a probe of its own is under way"
    assert told.next_probe("v") == S // 4


def test_what_is_held_can_be_read(told: Told) -> None:
    """For people: which route, since when and why, when the next probe is, how many wait."""
    assert exchange(told.redis, find_routes()) == []
    told.tell("w", "down")
    told.redis.zadd("notifier:waiting_for_route:apns", {"udefault ann": 1})
    (held,) = exchange(told.redis, find_routes())
    at = datetime.fromtimestamp(START / S, tz=UTC)
    assert (held.route, held.state, held.kind, held.reason) == ("apns", "stopped", "unreachable", "Refused")
    assert (held.since, held.waiting) == (at, 1)
    assert (held.next_at - at).total_seconds() == 1.0


def test_probes_come_to_nothing_ever_more_slowly(redis: Redis) -> None:
    """The wait grows by a half with each vain probe, up to the most; other workers' failures change nothing."""
    told = Told(redis)
    waits: list[Any] = []
    told.tell("w", "down")
    for _ in range(4):
        redis.hset("notifier:route:apns", "prober", "w")
        told.tell("v", "down")
        told.tell("w", "down")
        waits.append(told.next_probe("w"))
    assert waits == [1_500_000, 2_250_000, 3_375_000, 4 * S]


def test_the_last_prober_lets_the_others_go_first(redis: Redis) -> None:
    """One whose network is broken does not keep the others from probing, though it is always the first to wake."""
    told = Told(redis)
    told.tell("w", "down")
    told.tell("v", "down")
    redis.hset("notifier:route:apns", "prober", "w")
    told.tell("w", "down")
    assert told.next_probe("w") == told.next_probe("v") == 1_500_000, "there is no other worker"
    redis.sadd("rq:workers", "rq:worker:w", "rq:worker:v")
    assert told.next_probe("w") == 1_500_000 + 1_200_000
    assert told.next_probe("v") == 1_500_000


def test_a_probe_that_finds_its_provider_full_is_no_trouble_of_its_worker(told: Told) -> None:
    """That is so for all workers alike: nobody goes first, and whoever gets through later doubts nobody."""
    told.redis.sadd("rq:workers", "rq:worker:w", "rq:worker:v")
    told.tell("w", "down")
    told.redis.hset("notifier:route:apns", "prober", "v")
    told.tell("v", "down", "full")
    assert told.next_probe("v") == told.next_probe("w") == 1_500_000
    hold = told.redis.hgetall("notifier:route:apns")
    assert (hold[b"kind"], hold[b"last"], b"w:v" in hold) == (b"full", b"", False)
    assert told.tell("w", "up") == "", "it may have been under way when the provider was full"


def test_a_clock_that_is_set_back_makes_no_probe_wait_for_the_step(told: Told) -> None:
    """However far back: what would be longer than any wait between probes is over."""
    told.tell("w", "down")
    told.now -= 3600 * S
    told.next_probe("w")
    assert told.redis.hget("notifier:route:apns", "probe") == b"1"
    told.redis.hset("notifier:route:apns", mapping={"probe": "", "prober": "w"})
    told.tell("w", "down")
    assert told.next_probe("w") == 1_500_000


def test_a_clock_that_is_set_back_leaves_nobody_alone(told: Told) -> None:
    """Who got through an hour ahead does so no more: the worker that is left may hold the route."""
    told.tell("w", "down")
    told.tell("v", "up")
    told.now -= 3600 * S
    assert told.tell("w", "down") == "opened"


def test_what_a_provider_asks_for_is_waited_for_in_full(told: Told) -> None:
    """A second worker is asked to wait for longer than the first was: for that long nothing goes, nor with jitter."""
    for first_us in (60 * S, 300 * S):
        wait = {"kind": "full", "first_us": first_us, "max_us": 600 * S, "share": 1250}
        run(told.redis, circuit(CircuitFields(str(told.now), "w", "fcm", "down", "429", **wait)))
        told.next_probe("v")
        assert told.redis.hget("notifier:route:fcm", "probe") == b""
    assert told.next_probe("v") == 375 * S


@pytest.mark.parametrize("name", ["fcm|full", "overall:news|full"])
def test_what_waits_for_room_does_not_wait_for_the_step(told: Told, name: str) -> None:
    """Of a project and of a pace: they are looked at again at once."""
    full = {"state": "full", "until": told.now + 60 * S, "interval": 61 * S, "room": 1}
    told.redis.sadd("notifier:routes", name)
    told.redis.hset(f"notifier:route:{name}", mapping=full)
    told.redis.zadd(f"notifier:waiting_for_route:{name}", {"udefault ann": told.now})
    assert told.next_probe("w") == 60 * S
    told.now -= 3600 * S
    told.next_probe("w")
    assert told.redis.exists(f"notifier:waiting_for_route:{name}") == 0
