"""The whole way to HMS Push and Expo: enqueue, limiter, worker, server; one user's rates hold over all platforms."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from redis import Redis

from notifier import Device, Notifier
from notifier.simulators.certificates import make_certificates
from notifier.simulators.expo import ExpoSimulator
from notifier.simulators.hms import HmsSimulator
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
    worker,
    write_config,
)

RATES = {"users": {"slow": {"windows": ["1/1s"]}}}


@dataclass(frozen=True, slots=True)
class World:
    """One worker, and the simulators of Apple, Huawei and Expo."""

    redis: Redis
    simulators: Simulators
    hms: HmsSimulator
    expo: ExpoSimulator
    log: WireLog
    producer: Notifier
    worker: WorkerProcess

    def arrived(self, title: str) -> list[Arrival]:
        others = [arrival for arrival in list(self.log.arrivals) if arrival.title == title]
        return [*others, *self.simulators.arrived(title)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    certificates, log = make_certificates(folder), WireLog()
    for name in ("secret", "token"):
        (folder / name).write_text(f"the-{name}\n")
    with Simulators(folder / "simulators") as simulators:
        hms = HmsSimulator(certificates=certificates, log=log, apps={"1042": "the-secret"})
        expo = ExpoSimulator(certificates=certificates, log=log, access_token="the-token")
        for server in (hms, expo):
            simulators.call(server.start())
        ca_file = str(certificates.ca_file)
        both = {
            "hms": {"app_id": "1042", "secret_file": "secret", "endpoint": hms.url, "token_endpoint": hms.url},
            "expo": {"access_token_file": "token", "endpoint": expo.url, "receipts_after": "50ms"},
        }
        providers = simulators.providers() | {
            name: section | {"ca_file": ca_file, "timeout": "8s"} for name, section in both.items()
        }
        config = write_config(folder, redis_server.url, providers, **RATES)
        with client_of(config) as redis:
            redis.flushdb()
            with notifier(config) as producer, worker(config) as running:
                yield World(redis, simulators, hms, expo, log, producer, running.ready(redis))
        for server in (hms, expo):
            simulators.call(server.close())


def huawei(name: str) -> Device:
    return Device("hms", f"IQAAAACy0{name:_>40}")


def expo_app(name: str) -> Device:
    return Device("expo", f"ExponentPushToken[{name:_>22}]")


def test_each_is_reached_and_the_notification_counts_once(world: World) -> None:
    """One notification for an iPhone, a Huawei phone and an Expo app reaches the three, and is one send."""
    devices = (apns("all"), huawei("all"), expo_app("all"))
    job_id = world.producer.send(note("anna", "whole", *devices, body="…", data={"id": "7"}))
    ends(world.producer, job_id, "delivered")
    assert {arrival.platform for arrival in world.arrived("whole")} == {"apns", "hms", "expo"}
    assert len(world.arrived("whole")) == 3
    assert [record.outcome for record in world.producer.history("anna")] == ["delivered"]
    assert "the-secret" not in world.worker.log
    assert "the-token" not in world.worker.log


def test_the_limits_of_a_user_hold_over_all_platforms(world: World) -> None:
    """Law 1, at the wire: one a second for a user is one a second, whichever platform each of them goes to."""
    devices = (expo_app("slow"), apns("slow"), huawei("slow"), expo_app("slow"))
    for n, device in enumerate(devices):
        world.producer.send(note("slow", f"slow-{n}", device, body="…"))
    eventually(lambda: world.arrived("slow-3"), "the last")
    arrivals = [world.arrived(f"slow-{n}")[0] for n in range(len(devices))]
    assert [arrival.platform for arrival in arrivals] == [device.platform for device in devices]
    assert all(after.at_us - before.at_us >= 1_000_000 for before, after in pairwise(arrivals))


def test_many_for_expo_go_in_few_requests(world: World) -> None:
    """What goes at the same time shares a request, of a hundred messages at the most."""
    before = world.expo.requests
    assert world.producer.send_many(note(f"many-{n}", f"many-{n}", expo_app(f"many-{n}")) for n in range(150)) == 150
    eventually(lambda: all(len(world.arrived(f"many-{n}")) == 1 for n in range(150)), "all of them, once")
    assert world.expo.requests - before < 50


def test_a_dead_token_is_told(world: World) -> None:
    """What Huawei says at once, Expo by its ticket, or by a receipt later, is in the feedback, once each."""
    world.expo.playback.rewrite(expo_app("gone").token, [Reply(400, "DeviceNotRegistered")])
    world.hms.playback.rewrite(huawei("gone").token, [Reply(400, "80300007")])
    ends(world.producer, world.producer.send(note("gone", "alive", huawei("alive"), body="…")), "delivered")
    for device in (expo_app("gone"), huawei("gone")):
        ends(world.producer, world.producer.send(note("gone", "gone", device, body="…")), "rejected")
    world.expo.receipts[expo_app("late").token] = "DeviceNotRegistered"
    ends(world.producer, world.producer.send(note("gone", "late", expo_app("late"))), "delivered")
    told = []

    def all_told() -> bool:
        told.extend(each for each in world.producer.feedback("devices") if each.user == "gone")
        return len(told) == 3

    eventually(all_told, "three dead tokens")
    assert {(each.platform, each.token, each.reason) for each in told} == {
        ("expo", expo_app("gone").token, "DeviceNotRegistered"),
        ("hms", huawei("gone").token, "80300007"),
        ("expo", expo_app("late").token, "DeviceNotRegistered"),
    }
    assert expo_app("late").token not in world.worker.log
