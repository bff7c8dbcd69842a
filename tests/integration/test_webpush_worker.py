"""The whole way to a browser: enqueue, limiter, worker, push service; what the browser reads is what was sent."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from redis import Redis

from notifier import Device, Notifier
from notifier.providers.webpush.keys import load_key, public_key
from notifier.simulators.certificates import make_certificates, make_webpush_key
from notifier.simulators.webpush import WebPushSimulator
from notifier.simulators.wire import Arrival, Reply, WireLog
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import (
    Simulators,
    WorkerProcess,
    apns,
    client_of,
    ends,
    eventually,
    note,
    notifier,
    state,
    worker,
    write_config,
)
from tests.harness.vapid import make_key

RATES = {"users": {"slow": {"windows": ["1/1s"]}}}


@dataclass(frozen=True, slots=True)
class World:
    """One worker, Apple's simulator and two browser vendors', of which `other` may be stopped."""

    redis: Redis
    simulators: Simulators
    browsers: WebPushSimulator
    other: WebPushSimulator
    log: WireLog
    producer: Notifier
    worker: WorkerProcess

    def browser(self, name: str, *replies: Reply, key: str = "") -> Device:
        if replies:
            self.browsers.playback.rewrite(name, replies)
        return Device("webpush", self.browsers.subscribe(name, key))

    def read(self, title: str) -> list[Arrival]:
        return [arrival for arrival in list(self.log.arrivals) if arrival.title == title]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    certificates = make_certificates(folder)
    key_file, public = make_webpush_key(folder)
    log = WireLog()
    with Simulators(folder / "simulators") as simulators:
        vendors = [WebPushSimulator(certificates=certificates, log=log, public_key=public) for _ in range(2)]
        for vendor in vendors:
            simulators.call(vendor.start())
        webpush = {
            "key_file": str(key_file),
            "subject": "mailto:push@example.com",
            "hosts": [vendor.url.removeprefix("https://") for vendor in vendors],
            "ca_file": str(certificates.ca_file),
            "timeout": "8s",
        }
        config = write_config(folder, redis_server.url, simulators.providers() | {"webpush": webpush}, **RATES)
        with client_of(config) as redis:
            redis.flushdb()
            with notifier(config) as producer, worker(config) as running:
                yield World(redis, simulators, *vendors, log, producer, running.ready(redis))
        for vendor in vendors:
            simulators.call(vendor.close())


def test_a_browser_reads_what_was_sent(world: World) -> None:
    """A notification for a phone and a browser counts once, and the browser decrypts it, with the time that is left."""
    devices = (apns("both"), world.browser("anna"))
    fields = {"data": {"id": [7]}, "collapse_id": "c", "expires_in": 90, "webpush": {"url": "/chat/7"}}
    job_id = world.producer.send(note("anna", "whole", *devices, **fields))
    ends(world.producer, job_id, "delivered")
    (arrival,) = world.read("whole")
    assert (arrival.token, arrival.data, arrival.collapse_id) == ("anna", {"id": [7]}, "c")
    assert 60_000_000 <= (arrival.ttl_us or 0) <= 90_000_000
    assert len(world.simulators.arrived("whole")) == 1
    assert [record.outcome for record in world.producer.history("anna")] == ["delivered"]
    assert "/push/" not in world.worker.log


def test_the_limits_hold_for_browsers_too(world: World) -> None:
    """Three for a user who may have one a second arrive a second apart, in order."""
    for n in range(3):
        world.producer.send(note("slow", f"slow-{n}", world.browser("slow")))
    eventually(lambda: world.read("slow-2"), "the third")
    times = [world.read(f"slow-{n}")[0].at_us for n in range(3)]
    assert all(after - before >= 1_000_000 for before, after in pairwise(times))


def test_a_browser_that_unsubscribed_is_dead(world: World) -> None:
    """410 ends the notification as rejected, and the feed gives the subscription back, to be deleted."""
    gone = world.browser("gone", Reply(410, "Unregistered"))
    job_id = world.producer.send(note("gone", "gone", gone))
    ends(world.producer, job_id, "rejected")
    (told,) = [each for each in world.producer.feedback("browsers") if each.user == "gone"]
    assert (told.platform, told.token, told.reason) == ("webpush", gone.token, "Unregistered")
    assert gone.token not in world.worker.log


def test_one_old_subscription_stops_nobody(world: World) -> None:
    """A subscription made for another key is rejected by itself; before and after it, the others are served."""
    stale = world.browser("stale", key=public_key(load_key(make_key())))
    before, wrong, after = [
        world.producer.send(note(f"user-{n}", f"key-{n}", device))
        for n, device in enumerate((world.browser("fine"), stale, world.browser("fine")))
    ]
    ends(world.producer, before, "delivered")
    ends(world.producer, wrong, "rejected")
    ends(world.producer, after, "delivered")


def test_one_vendor_that_is_down_holds_up_no_other(world: World) -> None:
    """While one push service is gone its messages wait, without spending attempts; others arrive; then they too."""
    world.simulators.call(world.other.close())
    away = [
        world.producer.send(note(f"away-{n}", f"away-{n}", Device("webpush", world.other.subscribe(f"away-{n}"))))
        for n in range(3)
    ]
    here = [world.producer.send(note(f"here-{n}", f"here-{n}", world.browser(f"here-{n}"))) for n in range(10)]
    for job_id in here:
        ends(world.producer, job_id, "delivered")
    assert {state(world.producer, job_id) for job_id in away} <= {"waiting", "sending"}
    world.simulators.call(world.other.start())
    for job_id in away:
        ends(world.producer, job_id, "delivered")
    assert all(len(world.read(f"away-{n}")) == 1 for n in range(3))
