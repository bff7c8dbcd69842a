"""A long outage of 429: it holds up what it concerns, spends no attempt, and ends nothing before it expires."""

import time
from pathlib import Path

import pytest

from notifier.notification import Device
from notifier.simulators.wire import Reply
from tests.harness.support import apns, ends, eventually, fcm, note
from tests.laws.test_held_routes import Service, events, service

ATTEMPTS = 3
CATEGORIES = {"default": {"lane": "default", "attempts": ATTEMPTS}}
OF_PROJECT = Reply(429, "RESOURCE_EXHAUSTED", {"Retry-After": "100"})
OK = Reply(200)


def waits_until(up: Service, job_id: str) -> int:
    """Until when it keeps its backlog waiting, µs; 0 where it does not."""
    return int(up.redis.hget(f"rq:job:{job_id}", "push_wait") or 0)


def end_wait(up: Service, job_id: str, user: str) -> None:
    """Let its wait be over: a test has not the minutes that providers ask for."""
    up.redis.hdel(f"rq:job:{job_id}", "push_wait")
    up.redis.zadd("notifier:wakeups:default", {user: 0})


@pytest.mark.parametrize(
    ("device", "reply"),
    [
        (fcm("busy"), Reply(429, "QUOTA_EXCEEDED", {"Retry-After": "70"})),
        (apns("busy"), Reply(429, "TooManyRequests", {"Retry-After": "70"})),
    ],
    ids=["fcm", "apns"],
)
def test_a_busy_device_waits_for_as_long_as_it_lasts(tmp_path: Path, device: Device, reply: Reply) -> None:
    """Refused four times as often as `attempts` allows it still waits, never less than was asked, and then goes."""
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        up.simulators.answer(device, reply)
        (job_id,) = up.send([note("busy", "busy", device)])
        for refusals in range(1, 4 * ATTEMPTS):
            eventually(lambda n=refusals: len(up.simulators.arrived("busy")) == n, f"try {refusals}")
            until_us = eventually(lambda: waits_until(up, job_id), "it to wait")
            assert until_us >= up.simulators.arrived("busy")[-1].at_us + 70_000_000
            up.nothing_spent([job_id])
            (good_id,) = up.send([note("good", "good", Device(device.platform, device.token[:-1] + "f"))])
            ends(up.producer, good_id, "delivered")
            if refusals == 4 * ATTEMPTS - 1:
                up.simulators.answer(device, OK)
            end_wait(up, job_id, "busy")
        ends(up.producer, job_id, "delivered")
        assert events([running], "circuit_opened") == []


def test_it_ends_when_it_expires(tmp_path: Path) -> None:
    """What a busy device has not taken by then is expired, not failed."""
    with service(tmp_path, categories=CATEGORIES) as up:
        up.work("one")
        device = up.simulators.answer(fcm("late"), Reply(429, "QUOTA_EXCEEDED"))
        (job_id,) = up.send([note("late", "late", device, expires_in=60)])
        eventually(lambda: waits_until(up, job_id), "it to wait")
        up.redis.hset(f"rq:job:{job_id}", "push_deadline", 1)
        up.redis.zadd("notifier:wakeups:default", {"late": 0})
        ends(up.producer, job_id, "expired")


def test_a_full_project_is_held(tmp_path: Path) -> None:
    """Twenty users of a full project wait for it; one of them is asked for when the provider's wait is over, no sooner.

    What was under way and is taken all the same does not open it again; another platform goes on; nothing is spent.
    """
    with service(tmp_path, categories=CATEGORIES) as up:
        running = up.work("one")
        slow = up.simulators.delay(fcm("under-way"), 3_000)
        (under_way,) = up.send([note("under-way", "under-way", slow)])
        eventually(lambda: up.redis.zcard("notifier:leases") == 1, "it to be under way")
        devices = [up.simulators.answer(fcm(f"p{n}"), OF_PROJECT) for n in range(20)]
        ids = up.send([note(f"p{n}", f"full-p{n}-0", device) for n, device in enumerate(devices)])
        eventually(up.held, "the route to be held")
        eventually(lambda: up.redis.zcard("notifier:waiting_for_route:fcm") == 20, "them to wait for a route")
        ends(up.producer, under_way, "delivered")
        (other,) = up.send([note("other", "other")])
        ends(up.producer, other, "delivered")
        (route,) = up.held()
        assert (route.route, route.state, route.kind, "429" in route.reason) == ("fcm", "stopped", "full", True)
        assert route.next_at.timestamp() - time.time() > 90
        up.nothing_spent(ids)
        asked = len([a for a in up.simulators.all() if a.status == 429])
        assert asked <= 20, "each once at most, and none of them again"

        up.work("two").ready(up.redis)  # a worker that begins has mended nothing
        (route,) = up.held()
        assert route.next_at.timestamp() - time.time() > 85

        def probe() -> None:
            now = time.time_ns() // 1000
            up.redis.hset("notifier:route:fcm", mapping={"until": now, "others": now})
            up.send([note("wake", "wake")])

        probe()
        eventually(lambda: len([a for a in up.simulators.all() if a.status == 429]) == asked + 1, "the probe")
        # Its worker held the route when it took the probe, and holds it again when it has the answer.
        eventually(lambda: up.redis.hget("notifier:route:fcm", "prober") == b"", "the probe's answer to be told")
        eventually(lambda: up.held()[0].next_at.timestamp() - time.time() > 90, "it to be held again")
        up.nothing_spent(ids, probing=True)
        for device in devices:
            up.simulators.answer(device, OK)
        probe()
        for job_id in ids:
            ends(up.producer, job_id, "delivered")
        assert up.held() == []
        assert len(events([running], "circuit_opened")) == 1
        assert int(up.redis.hget("notifier:stats", "retried") or 0) == 0
