"""Law 1 in real time: state that expires in Redis is what no injected clock can show."""

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from notifier.limiter import Hold, Limiter, MemoryLimiter, Permit, Window
from notifier.rules.policy import Burst, Policy
from notifier.units import format_duration
from tests.harness.asking import InMemory, InRedis
from tests.harness.fleet import broken_rules, notification, sends, start_fleet

RUN_S = 12.0  # longer than a send could be taken back
EVERY_US = 50_000
Acquire = Callable[[Policy], Any]
WAYS: dict[str, Callable[[Any], Acquire]] = {
    "user": lambda redis: lambda policy: InRedis(redis).acquire("ann", policy),
    "key": lambda redis: lambda policy: Limiter(redis, namespace="n").acquire("ann", policy),
    "memory": lambda _redis: functools.partial(MemoryLimiter().acquire, "ann"),
}


@pytest.mark.parametrize("capacity", [2, 3, 5])
def test_who_is_always_hungry_gets_one_burst_and_no_second(redis: Redis, capacity: int) -> None:
    """Between any two permits there are at most so many as the bucket holds and gains; in both backends alike."""
    policy = Policy(burst=Burst(capacity, every_us=EVERY_US))
    acquires = [make(redis) for make in WAYS.values()]
    times: list[list[int]] = [[] for _ in acquires]
    opens = [0.0] * len(acquires)
    ends = time.monotonic() + RUN_S
    while (now := time.monotonic()) < ends:
        for n, acquire in enumerate(acquires):
            if opens[n] > now:
                continue
            answer = acquire(policy)
            if isinstance(answer, Hold):
                assert answer.time_left_us <= EVERY_US
                opens[n] = now + answer.time_left_us / 2e6  # asks too early, again and again
            else:
                times[n].append(answer.at_us)
        time.sleep(max(0.0, min(opens) - time.monotonic()))
    for way, taken in zip(WAYS, times, strict=True):
        full_us = 0
        for n, at_us in enumerate(taken):
            full_us = max(full_us, at_us) + EVERY_US
            assert full_us <= at_us + capacity * EVERY_US, f"{way}: permit {n} at {format_duration(at_us - taken[0])}"
        assert len(taken) > 2 * capacity, way


def test_a_hungry_user_gets_no_second_burst_at_the_wire() -> None:
    """Law 1: bursts of a user and of a category, always something waiting, for longer than any state lives."""
    rates = {
        "user": {"burst": {"capacity": 3, "refill": "1/200ms"}},
        "categories": {
            "default": {"lane": "default"},
            "chat": {"lane": "urgent", "burst": {"capacity": 2, "refill": "1/300ms"}},
        },
    }
    of = {n: ("ada", "chat" if n % 2 else "default") for n in range(70)}
    with start_fleet(rates, workers=2, latency_ms=3) as fleet:
        with fleet.notifier() as notifier:
            notifier.send_many(notification(user, n, category) for n, (user, category) in of.items())
        fleet.await_ended(len(of))
        arrived = sends(fleet.arrivals(), of)
        broken = broken_rules(fleet, arrived)
    assert broken == []
    assert sorted(int(send.name) for send in arrived) == sorted(of), "each once"


LONG, SHORT = Policy((Window(3, "2s"),)), Policy((Window(5, "1s"),))


@pytest.mark.parametrize("way", [name for name in WAYS if name != "key"])
def test_a_shorter_rule_forgets_nothing_that_a_longer_one_counts(redis: Redis, way: str) -> None:
    """Law 1: whoever asks by other rules, the longer rule never gives a fourth in two seconds."""
    limiter = InMemory(lambda: time.time_ns() // 1_000) if way == "memory" else InRedis(redis)
    taken: list[int] = []
    for pause_s, policy in (
        (0, LONG),
        (0, LONG),
        (0, LONG),
        (1.5, SHORT),
        (0, LONG),
        (0.6, LONG),
        (0, LONG),
        (0, LONG),
    ):
        time.sleep(pause_s)
        answer = limiter.acquire("ann", policy)
        if isinstance(answer, Permit):
            assert policy is SHORT or sum(at > answer.at_us - 2_000_000 for at in taken) < 3
            taken.append(answer.at_us)
    assert len(taken) >= 6, "the shorter one went, and two when the first three had left"
